"""Integer arithmetic from the experiment file on: the same guarantee, the same kind of model, refused elsewhere."""

import pytest

import sightline
from sightline.errors import InvalidInput


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_run_in_integers_has_the_same_guarantee_as_in_floats(tiny, tmp_path, where):
    runs = {
        kind: sightline.run(tiny(**{"privacy.arithmetic": kind, "privacy.where": where}), out=tmp_path / kind)
        for kind in ("float", "integer")
    }
    assert runs["integer"].summary["epsilon"] == runs["float"].summary["epsilon"]
    models = [(run.directory / "model.safetensors").read_bytes() for run in runs.values()]
    assert models[0] != models[1]


@pytest.mark.parametrize(("key", "value"), [("privacy.unit", "sample"), ("privacy.unit", "none")])
def test_it_is_refused_where_it_would_not_hold(tiny, key, value):
    changes = {key: value, "privacy.arithmetic": "integer", "privacy.noise_multiplier": None}
    if value == "sample":
        changes |= {"privacy.noise_multiplier": 1.0, "sampling.clients": {"scheme": "full"}}
    with pytest.raises(InvalidInput, match=r"privacy\.arithmetic=integer"):
        tiny(**changes)
