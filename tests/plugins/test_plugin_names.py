"""Names of things from elsewhere: found, shown, run, resumed; and every mistake is one line that names the way out."""

import sys

import pytest

import sightline
from sightline import engine, plugins
from sightline.config import parse, read
from sightline.engine.build import list_plugins
from sightline.errors import InvalidInput, Refused
from tests.laws.combinations import Combination, plain

OWN = """
from dataclasses import dataclass

from sightline.algorithms import Algorithm

@dataclass(frozen=True)
class Settings:
    step: float = 1.0

def init_state(start, clients, settings):
    return {"model": start}

def run_round(state, r, settings):
    return {"model": state["model"] + settings.step * r.release_mean(r.train(r.sample(), state["model"]))}

OWN = Algorithm("fedavg", Settings, init_state, run_round, lambda state, clients: state["model"])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own, which a test may write again."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source=OWN, name="own_round"):
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        return f"{name}:OWN"

    yield write
    sys.modules.pop("own_round", None)


FEW = ["rounds=2", "data.clients=12", "data.train_samples=120", "local.epochs=1", "privacy.delta=0.01"]


def file_with(**tables):
    file = plain(Combination())
    for name, table in tables.items():
        file[name] = {**file.get(name, {}), **table}
    return file


def test_a_field_that_moved_into_the_facts_is_one_line_that_says_so(own):
    name = own(OWN.replace('state["model"])\n', 'state["model"], says="hello")\n'))
    with pytest.raises(InvalidInput, match=r"Algorithm\(says=...\) moved: pass facts=AlgorithmFacts\(says=...\)"):
        engine.build_experiment(parse(file_with(algorithm={"name": name})))


def test_an_algorithm_of_ones_own_runs_and_is_called_as_it_was_asked_for(own, tmp_path):
    name = own()
    run = sightline.run(file_with(algorithm={"name": name, "step": 0.5}), out=tmp_path / "run")
    assert run.metadata["algorithm"] == name  # not "fedavg", which is what it calls itself
    assert any(f"The algorithm {name} comes from own_round" in note for note in run.metadata["caveats"])
    assert name in run.report.read_text()


def test_it_is_fedavg_to_the_bit(own, tmp_path):
    ours = sightline.run(file_with(), out=tmp_path / "ours")
    theirs = sightline.run(file_with(algorithm={"name": own()}), out=tmp_path / "theirs")
    read_model = [(run.directory / "model.safetensors").read_bytes() for run in (ours, theirs)]
    assert read_model[0] == read_model[1]
    assert [r.body() for r in ours.ledger] == [r.body() for r in theirs.ledger]


def test_all_names_of_an_installed_package_work_like_built_in_ones(installed, tmp_path):
    run = sightline.run(installed / "plugin.toml", overrides=FEW, out=tmp_path / "run")
    assert run.epsilon <= 20
    assert run.metadata["topology"] == "consortium"
    assert [plugin.kind.key for plugin in list_plugins(read(installed / "plugin.toml"))] == [
        "algorithm.name",
        "privacy.mechanism",
        "topology.kind",
        "sampling.clients.scheme",
    ]


def test_what_is_offered_and_what_is_named_are_the_same_run(installed, tmp_path):
    words = [*FEW, "algorithm.name=sightline_example.fedema:ALGORITHM"]
    words += [
        "privacy.mechanism=sightline_example.median:MECHANISM",
        "topology.kind=sightline_example.consortium:TOPOLOGY",
    ]
    words += ["sampling.clients.scheme=sightline_example.availability:SAMPLER"]
    named = sightline.run(installed / "plugin.toml", overrides=words, out=tmp_path / "named")
    offered = sightline.run(installed / "plugin.toml", overrides=FEW, out=tmp_path / "offered")
    assert (named.directory / "model.safetensors").read_bytes() == (
        offered.directory / "model.safetensors"
    ).read_bytes()


MISTAKES = {
    "algorithm.name": ({"algorithm": {"name": "fedavgg"}}, 'no such algorithm; did you mean "fedavg"?'),
    "privacy.mechanism": ({"privacy": {"mechanism": "gausian"}}, 'no such mechanism; did you mean "gaussian"?'),
    "topology.kind": ({"topology": {"kind": "stars"}}, 'no such topology; did you mean "star"?'),
    "sampling.clients.scheme": (
        {"sampling": {"clients": {"scheme": "poison", "rate": 0.5}}}, 'no such sampler; did you mean "poisson"?'
    ),
    "resources.model": ({"resources": {"model": "wireles"}}, 'no such resource model; did you mean "wireless"?'),
}  # fmt: skip


@pytest.mark.parametrize("key", MISTAKES)
def test_a_mistyped_name_has_its_neighbour(key):
    tables, line = MISTAKES[key]
    with pytest.raises(InvalidInput, match=key) as raised:
        engine.build_experiment(parse(file_with(**tables)))
    assert line in str(raised.value)
    assert '(your own: "package.module:OBJECT")' in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_offered_name_is_a_neighbour_too(installed):
    with pytest.raises(InvalidInput, match='did you mean "fedema"'):
        engine.build_experiment(parse(file_with(algorithm={"name": "fedemaa"})))


PLACES = {
    "algorithm.name": lambda name: {"algorithm": {"name": name}},
    "privacy.mechanism": lambda name: {"privacy": {"mechanism": name}},
    "topology.kind": lambda name: {"topology": {"kind": name}},
    "sampling.clients.scheme": lambda name: {"sampling": {"clients": {"scheme": name}}},
    "resources.model": lambda name: {"resources": {"model": name}},
}


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nowhere.at_all:OWN", "module 'nowhere.at_all' cannot be imported"),
        ("own_round:ONW", "'own_round' has no 'ONW'; did you mean \"OWN\"?"),
        ("own_round:__doc__", "is a "),
    ],
)
def test_what_cannot_be_found_or_is_something_else_is_one_line(own, key, name, line):
    own('"""Text."""\n\nOWN = 1\n')
    with pytest.raises(InvalidInput, match=key) as raised:
        engine.build_experiment(parse(file_with(**PLACES[key](name))))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["two words", "a:b:c", ":OWN", "own:", "../etc:x", "x" * 300, "own\n:x"])
@pytest.mark.parametrize("key", PLACES)
def test_what_is_no_name_is_refused_by_the_file(key, name):
    with pytest.raises(InvalidInput, match=key) as raised:
        parse(file_with(**PLACES[key](name)))
    assert "package.module:OBJECT" in str(raised.value)


@pytest.mark.parametrize(
    ("group", "name", "key"),
    [
        ("algorithms", "fedavg", "algorithm.name"),
        ("mechanisms", "gaussian", "privacy.mechanism"),
        ("topologies", "star", "topology.kind"),
        ("samplers", "full", "sampling.clients.scheme"),
    ],
)
def test_a_plugin_cannot_shadow_a_built_in_name(offer, group, name, key):
    offer("sly", **{group: {name: "sly.module:THING"}})
    with pytest.raises(
        InvalidInput, match=f"{key}={name}: sly offers a plugin of this name, but a plugin cannot replace"
    ):
        engine.build_experiment(parse(file_with()))
    assert "sly.module" not in sys.modules


def test_a_name_that_two_packages_offer_belongs_to_neither(offer):
    offer("one", algorithms={"mine": "one.module:THING"})
    offer("two", algorithms={"mine": "two.module:THING"})
    with pytest.raises(InvalidInput, match=r"algorithm.name=mine: .*one.* offer plugins of this name"):
        engine.build_experiment(parse(file_with(algorithm={"name": "mine"})))


def test_nothing_is_imported_to_find_a_plugin(own):
    own("raise RuntimeError('imported')")
    experiment = parse(file_with(algorithm={"name": "own_round:OWN"}))
    (plugin,) = list_plugins(experiment)
    assert (plugin.module, plugin.attribute) == ("own_round", "OWN")
    with pytest.raises(InvalidInput, match=r"cannot be imported .RuntimeError: imported"):
        engine.build_experiment(experiment)


class Stopped(Exception):
    pass


def stop_after_two(row):
    if row["round"] == 2:
        raise Stopped


def test_a_changed_plugin_is_noticed_when_a_run_goes_on(own, tmp_path):
    file = file_with(algorithm={"name": own()})
    with pytest.raises(Stopped):
        sightline.run(file, out=tmp_path / "run", on_round=stop_after_two)
    own(OWN + "\n# changed\n")
    with pytest.raises(InvalidInput, match="changed since the run last worked: code of own_round"):
        sightline.run(tmp_path / "run", resume=True)
    sightline.run(tmp_path / "run", resume=True, accept_changes=True)


def test_so_is_what_an_installed_plugin_imports_of_its_own_package(tmp_path, monkeypatch, offer):
    """Installed packages are else known by their versions, which an author does not change with every line."""
    import sysconfig

    from sightline.engine import checkpoint

    monkeypatch.setattr(checkpoint, "_INSTALLED", (*checkpoint._INSTALLED, tmp_path / "site"))
    assert sysconfig.get_paths()["purelib"]
    package = tmp_path / "site" / "brought"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("FACTOR = 1.0\n")
    (package / "rounds.py").write_text(f"from brought import inner\n{OWN}")
    offer("brought", algorithms={"brought": "brought.rounds:OWN"})
    setting = engine.build_experiment(parse(file_with(algorithm={"name": "brought"})))
    found = dict(checkpoint.own_code(setting))
    assert {"brought.rounds", "brought.inner"} <= set(found)
    (package / "inner.py").write_text("FACTOR = 2.0\n")
    assert dict(checkpoint.own_code(setting)) != found
    for name in [name for name in sys.modules if name.startswith("brought")]:
        del sys.modules[name]


def test_a_built_in_experiment_names_no_code(tmp_path):
    from sightline.engine.checkpoint import own_code

    assert dict(own_code(engine.build_experiment(parse(file_with())))) == {}


def test_a_topology_that_is_like_nothing_needs_an_algorithm_that_names_it(example, monkeypatch):
    from dataclasses import replace

    from sightline_example import consortium

    monkeypatch.setattr(consortium, "TOPOLOGY", replace(consortium.TOPOLOGY, like=""))
    with pytest.raises(InvalidInput, match=r"topology.kind=.*: fedavg runs on star, tree"):
        engine.build_experiment(parse(file_with(topology={"kind": "sightline_example.consortium:TOPOLOGY"})))


@pytest.mark.parametrize(
    ("privacy", "line"),
    [
        ({"unit": "sample", "where": "client"}, "privacy.unit=sample: plugin mechanisms can be checked"),
        ({"unit": "none", "noise_multiplier": None, "clip_norm": 1.0}, "privacy.unit=none"),
        ({"where": "server"}, "privacy.where=server: sightline_example.median:MECHANISM adds noise at client"),
        ({"where": "client", "arithmetic": "integer"}, "privacy.arithmetic=integer"),
    ],
)
def test_a_mechanism_is_refused_where_its_laws_cannot_be_checked(example, privacy, line):
    file = file_with(privacy={"mechanism": "sightline_example.median:MECHANISM", **privacy})
    file["privacy"] = {key: value for key, value in file["privacy"].items() if value is not None}
    file["sampling"].pop("samples")
    with pytest.raises(Refused if "arithmetic" not in line else InvalidInput) as raised:
        engine.build_experiment(parse(file))
    assert line in str(raised.value)


def test_options_belong_to_plugins():
    with pytest.raises(InvalidInput, match=r"privacy\.options"):
        parse(file_with(privacy={"options": {"a": 1}}))
    with pytest.raises(InvalidInput, match=r"sampling\.clients\.options"):
        parse(file_with(sampling={"clients": {"scheme": "full", "options": {"a": 1}}}))
    with pytest.raises(InvalidInput, match=r"privacy\.options=inf"):
        parse(file_with(privacy={"mechanism": "mine:OWN", "options": {"a": float("inf")}}))


PRICES = """
import numpy as np
from sightline.resources import Cost, Sending

class Flat:
    def __init__(self, joule, clients):
        self.typical = Sending(np.full(clients, joule), np.ones(clients))

    def sending(self, *, round, use):
        return self.typical

    def wired(self, node, *, round):
        return Cost()

def OWN(settings, experiment, parameters):
    return Flat(settings["joule"], experiment.data.clients)
"""


def test_prices_of_ones_own(own, tmp_path):
    run = sightline.run(file_with(resources={"model": own(PRICES), "joule": 2.0}), out=tmp_path / "run")
    assert run.summary["energy_joule"] == 4 * 6 * 2.0  # rounds, clients, joule
    assert run.summary["delay_seconds"] == 4.0


POST = """
from sightline.runtimes.remote.client_executor import answer_simulated

class Loopback:
    asked = 0

    def __init__(self):
        self.kept = {}

    def ask(self, messages, group):
        Loopback.asked += len(messages)
        return {n: answer_simulated(message, self.kept.setdefault(n, {})) for n, message in messages.items()}

    def close(self):
        pass

def OWN(setting, directory):
    return Loopback()
"""


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_transport_of_ones_own_has_the_bits_of_the_simulator(own, tmp_path, algorithm):
    name, file = own(POST), file_with(algorithm={"name": algorithm}, privacy={"where": "client"})
    theirs = sightline.run(file, out=tmp_path / "theirs", runtime=name)
    ours = sightline.run(file, out=tmp_path / "ours")
    assert sys.modules["own_round"].Loopback.asked >= 6 * 4
    assert (theirs.directory / "model.safetensors").read_bytes() == (ours.directory / "model.safetensors").read_bytes()
    with pytest.raises(InvalidInput, match="runtime=simulatr: no such runtime; did you mean"):
        sightline.run(file, runtime="simulatr")


def test_every_kind_has_a_group_of_its_own():
    assert {kind.group for kind in plugins.KINDS} == {
        f"sightline.{name}"
        for name in ("algorithms", "mechanisms", "topologies", "samplers", "resources", "transports")
    }
