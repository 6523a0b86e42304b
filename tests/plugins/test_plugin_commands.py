"""Names from elsewhere on the command line, in pages and file names, and at sites, which import nothing they did not allow."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sightline.apps.cli.main import run_arguments
from sightline.apps.sweep import folder_name
from sightline.config import parse
from sightline.data import Client, Shard
from sightline.errors import Refused
from sightline.runtimes.site.approval import build_for_site, draw_up_approval
from sightline.runtimes.site.policy import SitePolicy
from tests.house.test_packages import SOURCE, imports
from tests.laws.combinations import Combination, plain
from tests.serve.serve_asking import asking, site_of

FEDEMA = "sightline_example.fedema:ALGORITHM"
MEDIAN = "sightline_example.median:MECHANISM"


def file_of(tmp_path, **tables):
    import tomli_w

    file = plain(Combination(where="client"))
    for name, table in tables.items():
        file[name] |= table
    path = tmp_path / "own.toml"
    path.write_text(tomli_w.dumps(file))
    return str(path)


def test_a_run_with_names_from_elsewhere_by_the_command(example, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["run", file_of(tmp_path), "--out", str(out), "--json", "--set", f"algorithm.name={FEDEMA}"]
    assert run_arguments([*words, "--set", f"privacy.mechanism={MEDIAN}"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["epsilon"] > 0
    page = (out / "report.html").read_text()
    assert FEDEMA in page
    assert run_arguments(["report", str(out)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("algorithm.name=fedavgg", 'sightline: algorithm.name=fedavgg: no such algorithm; did you mean "fedavg"?'),
        ("algorithm.name=sightline_example.fedema:ALGORITM", "has no 'ALGORITM'; did you mean \"ALGORITHM\"?"),
        (
            "privacy.mechanism=sightline_example.fedema:ALGORITHM",
            "is a Algorithm, but a mechanism must be a `MechanismPlugin`",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(example, tmp_path, capsys, word, line):
    out = tmp_path / "run"
    assert run_arguments(["run", file_of(tmp_path), "--out", str(out), "--set", word]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1
    assert not out.exists()


def test_a_folder_of_a_sweep_has_no_colon():
    folder = folder_name([f"algorithm.name={FEDEMA}", "seed=0"])
    assert ":" not in folder
    assert folder != folder_name(["algorithm.name=sightline_example.fedema_ALGORITHM", "seed=0"])


def policy(**more):
    facts = {"client": 0, "classes": 3, "unit": "client", "epsilon": 1e6, "delta": 0.01, "arithmetic": "float"}
    return SitePolicy(**facts | {"allow_large_delta": True} | more)


def data():
    rng = np.random.default_rng(0)
    some = Shard(rng.standard_normal((12, 5)).astype(np.float32), rng.integers(0, 3, 12))
    return Client(some, some)


def experiment_with(**tables):
    file = plain(Combination(where="client"))
    for name, table in tables.items():
        file.setdefault(name, {})
        file[name] |= table
    return parse(file)


PLACES = {
    "algorithm.name": ("algorithm", {"name": FEDEMA}),
    "privacy.mechanism": ("privacy", {"mechanism": MEDIAN}),
    "topology.kind": ("topology", {"kind": "sightline_example.consortium:TOPOLOGY"}),
    "sampling.clients.scheme": ("sampling", {"clients": {"scheme": "sightline_example.availability:SAMPLER"}}),
    "resources.model": ("resources", {"model": "sightline_example.prices:PRICES"}),
}


@pytest.fixture
def fresh(example):
    """Nothing of the example is imported yet; and nothing of it may be when a test ends."""
    for name in [name for name in sys.modules if name.startswith("sightline_example")]:
        del sys.modules[name]
    return example


@pytest.mark.parametrize("key", PLACES)
def test_a_site_imports_no_plugin_that_its_owner_did_not_allow(fresh, key):
    section, words = PLACES[key]
    with pytest.raises(Refused, match=f"{key}=.*this site runs only code that its owner has allowed") as raised:
        build_for_site(experiment_with(**{section: words}), policy(), data())
    assert "under [plugins] of site.toml" in str(raised.value)
    assert not [name for name in sys.modules if name.startswith("sightline_example")]


def test_nor_one_whose_source_is_another(fresh):
    allowed = {FEDEMA: hashlib.sha256(b"other").hexdigest()}
    with pytest.raises(Refused, match=r"algorithm.name=.*which is not the allowed one"):
        build_for_site(experiment_with(algorithm={"name": FEDEMA}), policy(plugins=allowed), data())
    assert not [name for name in sys.modules if name.startswith("sightline_example")]


def test_nor_one_that_it_allowed_as_a_model(fresh):
    allowed = {FEDEMA: digest_of("fedema")}
    with pytest.raises(Refused, match="its owner has allowed"):
        build_for_site(experiment_with(algorithm={"name": FEDEMA}), policy(models=allowed), data())


def digest_of(module):
    root = Path(__file__).parents[2] / "examples" / "plugin" / "src" / "sightline_example"
    return hashlib.sha256((root / f"{module}.py").read_bytes()).hexdigest()


def test_what_the_owner_allowed_is_approved_at_its_price(fresh):
    allowed = {FEDEMA: digest_of("fedema"), MEDIAN: digest_of("median")}
    experiment = experiment_with(algorithm={"name": FEDEMA}, privacy={"mechanism": MEDIAN})
    approval = draw_up_approval(experiment, policy(plugins=allowed), data(), id="one")
    plain_one = draw_up_approval(experiment_with(), policy(), data(), id="two")
    assert approval.epsilon == plain_one.epsilon > 0
    assert len(approval.calls) == len(plain_one.calls) == 4


def test_an_offered_name_is_allowed_by_its_name(fresh, installed):
    experiment = experiment_with(algorithm={"name": "fedema"})
    with pytest.raises(Refused, match=r"algorithm.name=fedema: this site runs only code"):
        build_for_site(experiment, policy(), data())
    assert not [name for name in sys.modules if name.startswith("sightline_example")]
    allowed = {"fedema": digest_of("fedema")}
    assert build_for_site(experiment, policy(plugins=allowed), data()).algorithm.name == "fedema"


def test_testing_needs_no_pytest():
    for path in (SOURCE / "testing").glob("*.py"):
        assert not {module.split(".")[0] for module, _ in imports(path)} & {"pytest", "hypothesis", "tests", "unittest"}


@pytest.mark.slow
def test_an_audit_attacks_what_is_brought(example, tmp_path, capsys):
    words = ["--trials", "20", "--canaries", "20", "--rounds", "2", "--set", f"privacy.mechanism={MEDIAN}"]
    assert run_arguments(["audit", file_of(tmp_path), *words]) == 0
    assert "as claimed" in capsys.readouterr().out


def test_pages_show_the_names_as_they_are(example, tmp_path, capsys):
    out = tmp_path / "runs" / "own"
    run_arguments(["run", file_of(tmp_path), "--out", str(out), "--json", "--set", f"algorithm.name={FEDEMA}"])
    capsys.readouterr()
    ask = asking(site_of(tmp_path / "runs"))
    for target in ("/", "/run?run=own", "/api/runs"):
        assert ask(target).status == 200, target
    assert FEDEMA in ask("/run?run=own").body.decode()
