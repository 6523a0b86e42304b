import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import sightline
from sightline.config import Experiment, parse, read, to_toml
from sightline.errors import InvalidInput

QUICKSTART = "examples/quickstart.toml"


def complaint(*overrides):
    with pytest.raises(InvalidInput) as caught:
        read(QUICKSTART, overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_resolved_file_reads_back_the_same():
    experiment = read(QUICKSTART)
    assert parse(tomllib.loads(to_toml(experiment))) == experiment
    assert parse(tomllib.loads(to_toml(experiment))).model_dump() == experiment.model_dump()


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("privacy.epsilonn=3", ["privacy.epsilonn=3", "unknown key", 'did you mean "epsilon"']),
        ("privcy.epsilon=3", ["privcy", 'did you mean "privacy"']),
        ("data.clients=0", ["data.clients=0", "greater than or equal to 1"]),
        ("data.clients=2.5", ["data.clients=2.5", "integer"]),
        ("data.clients=true", ["data.clients=True"]),
        ("data.partition=dirichlett", ["data.partition=dirichlett", 'did you mean "dirichlet"']),
        ("rounds=nan", ["rounds=nan"]),
        ("local.learning_rate=nan", ["local.learning_rate=nan", "finite"]),
        ("privacy.clip_norm=inf", ["privacy.clip_norm=inf", "finite"]),
        ("privacy.clip_norm=1e-25", ["privacy.clip_norm=1e-25", "greater than or equal to 0.000000000001"]),
        ("privacy.clip_norm='1'", ["privacy.clip_norm=1"]),
        ("privacy.delta=1.0", ["privacy.delta=1.0"]),
        ("name='../../etc'", ["name=", "letters, digits"]),
        ("seed=-1", ["seed=-1"]),
        ("sampling.clients={scheme='poisson'}", ["sampling.clients.rate=missing"]),
        ("sampling.clients={scheme='full', rate=0.5}", ["sampling.clients.rate=0.5", "remove it"]),
        ("sampling.clients={scheme='shuffle'}", ["sampling.clients.scheme=shuffle"]),
        ("sampling.clients.rate=1.5", ["sampling.clients.rate=1.5"]),
        ("sampling.samples={scheme='poisson'}", ["sampling.samples.scheme=poisson"]),
        ("data.clusters=[1, 2]", ["data.clusters"]),
        ("data.partition=rotation", ["data.clusters=missing"]),
        ("local=3", ["local=3"]),
        ("privacy.adjacency=replace", ["privacy.adjacency=replace", "Poisson", "add_remove"]),
        ("local.stragglers=2", ["local.stragglers=2"]),
        ("nonsense", ["--set=nonsense", "key=value"]),
        ("=3", ["--set", "key=value"]),
        ("rounds.x=3", ["--set", "rounds is a value"]),
    ],
)
def test_mistakes_teach_in_one_line(word, parts):
    line = complaint(word)
    for part in parts:
        assert part in line


def test_noise_and_epsilon_together_contradict(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text("rounds = 1\n[privacy]\nepsilon = 1.0\nnoise_multiplier = 1.0\n")
    with pytest.raises(InvalidInput, match="keep one of the two"):
        read(path)


def test_private_runs_need_an_amount_of_noise():
    with pytest.raises(InvalidInput, match="amount of noise"):
        parse({"rounds": 1, "privacy": {"unit": "client"}})


def test_none_has_no_noise():
    with pytest.raises(InvalidInput, match="adds no noise"):
        parse({"rounds": 1, "privacy": {"unit": "none", "epsilon": 1.0}})


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": {"samples": {"scheme": "shuffle"}}},
        {"local": {"stragglers": 0.5, "epochs": 3}},
        {"privacy": {"unit": "sample", "epsilon": 1.0, "where": "server"}},
        {"privacy": {"unit": "sample", "epsilon": 1.0, "adjacency": "replace"}},
    ],
)
def test_what_would_weaken_sample_privacy_is_refused(changes):
    with pytest.raises(InvalidInput):
        parse({"rounds": 1, "privacy": {"unit": "sample", "epsilon": 1.0}} | changes)


def test_setting_one_of_a_pair_replaces_the_other():
    experiment = read(QUICKSTART, ["privacy.noise_multiplier=1.5", "local.steps=3"])
    assert (experiment.privacy.epsilon, experiment.privacy.noise_multiplier) == (None, 1.5)
    assert (experiment.local.epochs, experiment.local.steps) == (None, 3)


def test_words_are_values_or_strings():
    experiment = read(QUICKSTART, ["name=mine", "seed=7", "model.hidden=[3, 4]", "data.reuse=false"])
    assert (experiment.name, experiment.seed, experiment.model.settings["hidden"]) == ("mine", 7, [3, 4])


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe", b"rounds = 1\nrounds = 2", b"[" * 5000])
def test_what_is_not_toml_is_said(tmp_path, content):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        read(path)


def test_a_missing_file_points_to_an_example(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read(tmp_path / "nowhere.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(tmp_path)


def test_a_dictionary_is_an_experiment_too(tmp_path):
    tables = {"rounds": 2, "data": {"clients": 4}, "privacy": {"unit": "client", "epsilon": 8.0, "delta": 1e-3}}
    file = tmp_path / "same.toml"
    file.write_text(tomli_w.dumps(tables))
    words = ["privacy.noise_multiplier=2.0", "seed=5"]
    assert read(tables, words) == read(file, words)
    assert tables["privacy"] == {"unit": "client", "epsilon": 8.0, "delta": 1e-3}
    run = sightline.run(tables, overrides=words, out=tmp_path / "run")
    assert run.summary["rounds_done"] == 2
    again = sightline.run(read(tables, words), out=tmp_path / "again")
    assert again.ledger.epsilon("client-0", "public", 1e-3) == run.ledger.epsilon("client-0", "public", 1e-3)
    with pytest.raises(InvalidInput, match='did you mean "clients"'):
        sightline.run({"data": {"client": 4}})
    for odd in (5, None, [("rounds", 2)]):
        with pytest.raises(InvalidInput, match="give a TOML file, a dict or an Experiment"):
            sightline.run(odd)


def test_a_minimal_file_has_sensible_defaults():
    experiment = parse({"rounds": 1})
    assert experiment.privacy.unit == "none"
    assert experiment.samples_scheme == "shuffle"
    assert parse({"rounds": 1, "privacy": {"unit": "sample", "epsilon": 1.0}}).samples_scheme == "poisson"


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
sections = st.dictionaries(st.sampled_from(sorted(Experiment.model_fields)), plain, max_size=4)


@given(sections)
def test_any_input_is_an_experiment_or_one_line(given):
    try:
        parse(given)
    except InvalidInput as error:
        assert "\n" not in str(error)


def test_a_mistyped_key_is_told_before_the_one_that_is_missing_for_it():
    with pytest.raises(InvalidInput, match=r'^rouns=3: unknown key; did you mean "rounds"\? \(and 1 more\)$'):
        parse({"name": "x", "rouns": 3, "data": {"source": "digits", "clients": 10}})


@given(st.data())
def test_any_value_in_any_place_is_an_experiment_or_one_line(data):
    section = data.draw(st.sampled_from(["data", "local", "privacy", "sampling", "model", "topology", "algorithm"]))
    known = sorted(Experiment.model_fields[section].annotation.model_fields)
    keys = st.one_of(st.sampled_from(known), st.text(max_size=8))
    table = data.draw(st.dictionaries(keys, plain, max_size=4))
    try:
        parse({"rounds": 2, section: table})
    except InvalidInput as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"source": "patients.csv", "classes": 2}, {"source", "clients", "partition", "classes", "test_fraction"}),
        ({"partition": "dirichlet"}, {"source", "clients", "partition", "concentration", "test_fraction"}),
        ({"source": "synthetic", "partition": "natural"}, {"alpha", "features", "classes", "size_mean", "iid"}),
        ({"source": "cifar10", "features": "scattering"}, {"source", "features"}),
    ],
    ids=["file", "dirichlet", "synthetic", "scattering"],
)
def test_what_is_printed_has_only_keys_that_the_source_reads(data, shown):
    """The stored file keeps every key: its digest names the experiment."""
    experiment = parse({"rounds": 1, "data": data})
    printed, stored = (tomllib.loads(text)["data"] for text in (str(experiment), to_toml(experiment)))
    assert shown <= set(printed)
    unread = {"alpha", "size_mean", "iid"} if data.get("source") != "synthetic" else {"concentration", "reuse"}
    assert not unread & set(printed)
    assert unread <= set(stored)
    assert ("features" in printed) == ("features" in shown)
    assert parse(tomllib.loads(to_toml(experiment))) == experiment
