"""The page of keys names every key of an experiment file with its default, and no other; every public name is in the reference."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

from pydantic_core import PydanticUndefined

import sightline
from sightline import config
from sightline.algorithms import REGISTRY
from tests.loops import for_every

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "experiment.md").read_text()
SECTIONS = {
    "At the top": config.Experiment,
    "`[data]`": config.Data,
    "`[model]`": config.Model,
    "`[topology]`": config.Topology,
    "`[algorithm]`": config.Algorithm,
    "`[algorithm.split]`": config.Split,
    "`[local]`": config.Local,
    "`[local.augment]`": config.Augment,
    "`[sampling]`": config.Sampler,
    "`[privacy]`": config.Privacy,
    "`[privacy.adaptive_clipping]`": config.AdaptiveClipping,
    "`[privacy.correlated]`": config.Correlated,
    "`[resources]`": config.Resources,
}


def keys(title):
    """Return key -> default, as the section of that title prints them."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = text.split("| key | default | meaning |\n|---|---|---|\n")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", table, re.MULTILINE))


def written(value):
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}):
        return "none"
    return f"`{json.dumps(value)}`" if isinstance(value, str | bool) else f"`{value!r}`"


@for_every(SECTIONS)
def test_every_key_has_its_line(title):
    section = SECTIONS[title]
    fields = section.model_fields
    tables = {name for name, field in fields.items() if section is config.Experiment and f"## `[{name}]`" in PAGE}
    told = keys(title)
    assert set(told) == set(fields) - tables
    for name, default in told.items():
        found = fields[name].get_default(call_default_factory=True)
        if (title, name) == ("`[local]`", "epochs"):
            found = config.Local().epochs
        assert default.replace("`1e-9`", "`1e-09`").replace("`1e-5`", "`1e-05`") == written(found), name


@for_every(REGISTRY)
def test_every_algorithm_has_its_keys(name):
    (line,) = re.findall(rf"^\| `{name}` \| (.*) \|$", PAGE, re.MULTILINE)
    derived = {"count", "candidates", "rounds", "known"}  # filled in from the rest of the file
    fields = [field for field in dataclasses.fields(REGISTRY[name].settings) if field.name not in derived]
    assert re.findall(r"`(\w+)(?: = [^`]*)?`", line) == [field.name for field in fields] or line == "none"
    for field in fields:
        assert f"`{field.name}" in line
        if field.default is not None:
            assert f"`{field.name} = {json.dumps(field.default)}`" in line


def hook():
    spec = importlib.util.spec_from_file_location("complete", ROOT / "docs" / "site" / "complete.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_build_knows_the_public_names_and_misses_what_is_missing():
    complete = hook()
    names = complete.public(complete.PACKAGE.read_text())
    assert names == sightline.__all__
    entries = {"api.run", "config.experiment.Experiment", "accounting.poisson"}
    left = complete.missing(names, entries)
    assert {"run", "Experiment", "accounting"}.isdisjoint(left)
    assert {"Refused", "ledger"} <= set(left)
