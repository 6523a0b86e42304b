"""Plugin checks by tiny experiments: run, repeated, interrupted and resumed, and accounted again by other code."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sightline import algorithms, engine, mechanisms, topology
from sightline.algorithms import Algorithm, with_facts
from sightline.config import ClientSampler, parse
from sightline.engine.algorithm_laws import check_sources
from sightline.engine.build import BuiltExperiment
from sightline.engine.plan import follow_plan, plan_releases
from sightline.engine.projection import check_projection
from sightline.engine.run_directory import MODEL
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Gaussian
from sightline.laws import check_plugin_laws, check_sampler_laws, check_shape
from sightline.ledger import Ledger
from sightline.mechanisms import CohortSampler, MechanismPlugin
from sightline.mechanisms.samplers import ONE_COHORT, BuildSampler
from sightline.plugins import ALGORITHM, MECHANISM, SAMPLER, TOPOLOGY, BrokenLaw, PluginKind, locate_plugin
from sightline.runtimes import Simulator
from sightline.testing.reaccount import confirm_ledger
from sightline.topology import TopologyPlugin

NAME = "under_test"
CLIENTS, ROUNDS, DELTA, TARGET = 6, 4, 0.01, 6.0
DRAWS = 4000
"""Number of draws of every Monte Carlo test."""
CELLS = 4_000_000

PRIVACY: dict[str, dict[str, Any]] = {
    "clients, noised by the server": {"unit": "client", "where": "server"},
    "clients, noised by themselves": {"unit": "client", "where": "client"},
    "examples": {"unit": "sample", "where": "client"},
    "no privacy": {"unit": "none"},
}
"""What an algorithm may be asked to protect."""


def check_algorithm(
    algorithm: Algorithm | str, *, tables: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> None:
    """Raise `BrokenLaw` unless an algorithm, or "package.module:ALGORITHM", keeps the laws of algorithms.

    With whatever its own `check` lets it protect, on the first of its topologies that is built in: what it computes
    from releases remembers them; every party holds the values that it uses; its claims do not follow released values
    and are those of its plan; it does not look at a cohort that sampling hides, and does not raise `BudgetExhausted`;
    the run costs no more than its plan; calibrated noise meets its target; run again, and interrupted and resumed, it
    ends with the same bits; its ledger is confirmed by other code. `settings` are its own; `tables` change the tiny
    experiment where the algorithm needs another: `{"local": {"steps": 10}}`.
    """
    result = _find_object(ALGORITHM, algorithm, Algorithm)
    kinds = [kind for kind in result.facts.topologies if kind in topology.REGISTRY]
    if not kinds:
        raise BrokenLaw(
            "an algorithm runs on a built-in topology", f"it runs only on {', '.join(result.facts.topologies)}"
        )
    protected = []
    with _registered(algorithms.REGISTRY, NAME, replace(result, name=NAME)):
        for name, privacy in PRIVACY.items():
            file = make_file(privacy, kind=kinds[0], algorithm={"name": NAME, **settings}, tables=tables)
            built = _build_or_none(file)
            if built is not None:
                protected.append(name)
                check_sources(built, follow_plan(built))
                check_projection(built)
                _check_runs(file)
                _check_hidden_cohorts(file)
    if not protected:
        raise BrokenLaw("an algorithm accepts at least one kind of privacy", f"it refuses {', '.join(PRIVACY)}")


def check_mechanism(mechanism: MechanismPlugin | str, *, clip_norm: float = 0.5, **options: Any) -> None:
    """Raise `BrokenLaw` unless a mechanism, or "package.module:MECHANISM", keeps the laws of mechanisms.

    For every place where it can add noise, under both adjacencies if it accepts them: claims are pure; noise is as
    claimed, Gaussian or by sampling, and independent of the data; neighbouring data sets differ by no more than it
    covers; post-processing uses only what was sent; then the laws of a run, as in `check_algorithm`. `options` are its
    own.
    """
    result = _find_object(MECHANISM, mechanism, MechanismPlugin)
    for where in result.where:
        kind = "tree" if where == "edge" else "star"
        with _registered(mechanisms.MECHANISMS, (NAME, "client", where), result.build):
            for adjacency in ("add_remove", "replace"):
                privacy = {"unit": "client", "where": where, "adjacency": adjacency, "mechanism": NAME}
                file = make_file(privacy | {"clip_norm": clip_norm, "options": options}, kind=kind)
                if adjacency == "replace" and _build_or_none(file) is None:
                    continue
                check_plugin_laws(result, parse(file), 3, draws=DRAWS)
                _check_runs(file)


def check_sampler(
    build: BuildSampler | str, *, population: int = 20, rate: float | None = None, **options: Any
) -> None:
    """Raise `BrokenLaw` unless a sampler, or "package.module:SAMPLER", keeps the laws of samplers.

    Its draws match its claims, under both adjacencies if it accepts them; then the laws of a run. `rate` and `options`
    are keys of `sampling.clients`.
    """
    result: BuildSampler = _find_object(SAMPLER, build)
    settings = ClientSampler(scheme=NAME, rate=rate, options=options or None)
    accepted = 0
    for adjacency in Adjacency:
        sampler = _build_sampler_or_none(result, settings, population, adjacency)
        amplified = sampler is not None and sampler.hidden_event(Gaussian(1.0)) != Gaussian(1.0)
        # Amplification under replace-one is refused when such a sampler is used, so it is not checked here.
        if sampler is not None and not (amplified and adjacency is Adjacency.REPLACE):
            accepted += 1
            check_sampler_laws(sampler, adjacency, cells=CELLS)
    if not accepted:
        raise BrokenLaw("a sampler can be built", "it refuses both adjacencies")
    with _registered(mechanisms.SAMPLERS, NAME, result):
        given = {"scheme": NAME, "rate": rate, "options": options or None}
        file = make_file({"unit": "client", "where": "server"})
        file["sampling"] = {"clients": {key: value for key, value in given.items() if value is not None}}
        _check_runs(file)


def check_topology(plugin: TopologyPlugin | str, *, algorithm: Algorithm | None = None, **settings: Any) -> None:
    """Raise `BrokenLaw` unless a topology, or "package.module:TOPOLOGY", keeps the laws of topologies.

    Built twice it is the same; every party that sees a release is an observer; then the laws of a run of `algorithm`,
    by default FedAvg, with noise at a trusted server and at the clients. `settings` are its own.
    """
    result = _find_object(TOPOLOGY, plugin, TopologyPlugin)
    # A single client and a prime number of clients: structures that divide clients evenly fail here.
    for clients in (CLIENTS, 1, 13):
        for place in ("server", "client", "none"):
            built, again = (
                result.build(settings, clients=clients, place=place, labels=None, streams=None) for _ in range(2)
            )
            check_shape(NAME, built, clients=clients, place=place, like=result.like)
            if (built.channels, built.lines, built.trusted) != (again.channels, again.lines, again.trusted):
                raise BrokenLaw(
                    "a topology is built the same way every time", f"a second topology of {clients} clients differs"
                )
    on_it = replace(with_facts(algorithm or algorithms.REGISTRY["fedavg"], topologies=(NAME,)), name=NAME)
    with _registered(topology.REGISTRY, NAME, result.build), _registered(algorithms.REGISTRY, NAME, on_it):
        for where in ("server", "client"):
            file = make_file({"unit": "client", "where": where}, kind=NAME, algorithm={"name": NAME})
            file["topology"] |= settings
            _check_runs(file)


def make_file(
    privacy: Mapping[str, Any],
    *,
    kind: str = "star",
    algorithm: Mapping[str, Any] | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return a tiny experiment of six clients with generated data, as the tables of a file."""
    noise = {} if privacy["unit"] == "none" else {"epsilon": TARGET, "delta": DELTA}
    own: dict[str, dict[str, Any]] = {"tree": {"subnets": 2, "trusted": ["edge-0"]}, "clusters": {"count": 2}}
    own["groups"] = {"structure": "ring", "groups": 2, "period": 2}
    data = {"source": "synthetic", "partition": "natural", "clients": CLIENTS, "features": 5, "classes": 3}
    file: dict[str, Any] = {
        "name": "under-test",
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "data": data | {"size_min": 8, "size_mean": 2.0, "size_sigma": 0.3},
        "model": {"name": "linear"},
        "topology": {"kind": kind, **own.get(kind, {})},
        "algorithm": dict(algorithm or {"name": "fedavg"}),
        "local": {"batch_size": 4, "learning_rate": 0.1, "steps": 2},
        "privacy": {key: value for key, value in {**privacy, **noise}.items() if value not in (None, {})},
    }
    for name, table in (tables or {}).items():
        file[name] = {**file.get(name, {}), **table}
    return file


def _check_hidden_cohorts(file: dict[str, Any]) -> None:
    """Check an algorithm with a hidden cohort, unless it refuses hidden cohorts or the file sets its own sampling."""
    if file["privacy"]["unit"] == "client" and "sampling" not in file:
        built = _build_or_none(file | {"sampling": {"clients": {"scheme": "poisson", "rate": 0.5}}})
        if built is not None:
            check_sources(built, follow_plan(built))


def _check_runs(file: dict[str, Any]) -> None:
    """Check the laws of a run: same bits, also after a resume; cost within plan and target; ledger confirmed."""
    built = engine.calibrate_noise(engine.build_experiment(parse(file)))
    with tempfile.TemporaryDirectory() as folder:
        whole, again, broken = (Path(folder) / name for name in ("whole", "again", "broken"))
        for directory in (whole, again):
            _run_once(built, directory)
        with suppress(_Stopped):
            _run_once(built, broken, stop=ROUNDS // 2)
        engine.run_loop(built, broken, partial(Simulator), resume=True)
        for directory, reason in (
            (again, "a repeated run gives the same result"),
            (broken, "a resumed run gives the same result"),
        ):
            if _digest_run(directory) != _digest_run(whole):
                raise BrokenLaw(reason, "the model or the ledger differs")
        with engine.RunRecord.open_to_read(whole) as record:
            ledger, trusted = record.ledger(), set(record.facts["trusted"])
        _check_costs(built, ledger, trusted)


class _Stopped(Exception):
    """Raised to interrupt a run on purpose."""


def _run_once(built: BuiltExperiment, directory: Path, *, stop: int | None = None) -> None:
    def watch(row: Mapping[str, Any]) -> None:
        if row["round"] == stop:
            raise _Stopped

    engine.new_directory(built.experiment, directory)
    engine.run_loop(built, directory, partial(Simulator), resume=False, on_round=watch)


def _digest_run(directory: Path) -> tuple[str, str]:
    with engine.RunRecord.open_to_read(directory) as record:
        head = record.store.head()
    return hashlib.sha256((directory / MODEL).read_bytes()).hexdigest(), head


def _check_costs(built: BuiltExperiment, ledger: Ledger, trusted: set[str]) -> None:
    if built.experiment.privacy.unit == "none":
        return
    planned = plan_releases(built)
    lines = [line for some in built.topology.lines.values() for line in some]
    spent, plan = (rows.worst_of(lines, DELTA) for rows in (ledger, planned))
    # `not spent <= ...` instead of `spent > ...`: NaN must fail too.
    if not spent <= plan * (1 + 1e-9):
        raise BrokenLaw("a run costs no more than its plan", f"epsilon {spent:.4g}, planned {plan:.4g}")
    if not spent <= TARGET * (1 + 1e-6):
        raise BrokenLaw("calibrated noise meets its target", f"epsilon {spent:.4g}, target {TARGET:g}")
    # The search covers every party in the export, not the observers that the topology declares: a forgotten one shows.
    worst = confirm_ledger(ledger, trusted, DELTA, draws=DRAWS)
    if not worst <= spent * (1 + 1e-9):
        raise BrokenLaw(
            "the topology names every observer", f"an observer has epsilon {worst:.4g}, but {spent:.4g} is stated"
        )


@contextmanager
def _registered(registry: MutableMapping[Any, Any], name: Any, thing: Any) -> Iterator[None]:
    """Register an object under a name for the duration of the context."""
    registry[name] = thing
    try:
        yield
    finally:
        del registry[name]


def _find_object(kind: PluginKind, given: Any, wanted: type | None = None) -> Any:
    """Return the object, or the one behind "package.module:OBJECT"; raise `BrokenLaw` if its type is wrong."""
    plugin = locate_plugin(kind, given, ()) if isinstance(given, str) else None
    result = given if plugin is None else plugin.load_object()
    if wanted is not None and not isinstance(result, wanted):
        raise BrokenLaw(
            "the object has the type of its kind", f"expected a {wanted.__name__}, got a {type(result).__name__}"
        )
    return result


def _build_or_none(file: dict[str, Any]) -> BuiltExperiment | None:
    """Return the built experiment, or None if it is refused."""
    try:
        return engine.build_experiment(parse(file))
    except InvalidInput:
        return None


def _build_sampler_or_none(
    build: BuildSampler, settings: ClientSampler, population: int, adjacency: Adjacency
) -> CohortSampler | None:
    try:
        return build(settings, population, adjacency, ONE_COHORT)
    except InvalidInput:
        return None
