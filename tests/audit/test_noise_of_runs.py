"""The noise of whole runs: of the scale that is claimed, normal, and never the same twice, for every party and time."""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from sightline import engine
from sightline.apps.audit.attack import Observer, watched_run
from sightline.apps.audit.canaries import CanaryClients, CanaryInclusion, CanaryShards, canary_examples
from sightline.apps.audit.canary_setup import STILL, with_examples
from sightline.config import parse
from sightline.engine import loop
from sightline.randomness import KeystreamGenerator, Purpose, Streams
from sightline.runtimes import Simulator
from sightline.training.dp_sgd_settings import gaussian_steps
from tests.laws.combinations import Combination, plain, run

SIZE = 10_000
NEVER = 1e-7
"""The probability with which a test of one sample raises a false alarm; there are about a hundred samples."""
Z, C = 1.0, 0.5


def silent_run(rounds=3, **words):
    """(key -> released vector, setting) of a run in which nobody has anything to say: what is released is noise."""
    setting = engine.calibrate_noise(engine.build_experiment(parse(plain(Combination(**words)))))
    secret, inclusion = Streams.from_seed(7), CanaryInclusion({}, setting.adjacency)
    if words.get("unit") == "sample":
        setting, _ = with_examples(setting, SIZE)
        setting = replace(setting, federation=canary_examples(setting.federation, SIZE, {}, inclusion))
        worker = CanaryShards(setting, secret, inclusion, {})
    else:
        setting = replace(setting, start=torch.zeros(SIZE))
        worker = CanaryClients(SIZE, setting.federation.sizes.tolist(), {}, inclusion, C, secret)
    watch = Observer("", lambda source, value, round: value[:SIZE].double(), turning=False)
    watch._sees = lambda ledger, time, source: True
    watched_run(setting, watch, worker, rounds=rounds, secret=secret)
    return {key: value.numpy() for key, value in watch.seen.items()}, setting


def normal_and_apart(noises):
    """Each sample standard normal, every two independent as far as correlation tells."""
    for noise in noises:
        assert stats.kstest(noise, "norm").pvalue > NEVER
        assert abs(stats.kurtosis(noise)) < 6 * math.sqrt(24 / len(noise))
    for one, other in combinations(noises, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6.5 / math.sqrt(len(one))


def test_one_noise_a_round_at_the_server():
    seen, setting = silent_run(clients="poisson")
    assert len(seen) == 3
    normal_and_apart([value / (Z * C / setting.sampler_of(setting.topology.top).expected) for value in seen.values()])


def test_one_noise_a_client_and_round():
    seen, _ = silent_run(where="client")
    sent = [value for (*_, source), value in seen.items() if source.startswith("client")]
    assert len(sent) == 3 * 6
    normal_and_apart([value / (Z * C) for value in sent])


def test_one_noise_a_group_and_round():
    seen, setting = silent_run(topology="groups", algorithm="dp_ogl", clients="poisson")
    expected = {channel.name: setting.sampler_of(channel).expected for channel in setting.topology.channels}
    assert len(seen) == 3 * len(expected)
    normal_and_apart([value / (Z * C / expected[source]) for (*_, source), value in seen.items()])


def test_one_noise_a_trusted_edge_and_one_a_device_elsewhere():
    seen, setting = silent_run(rounds=2, topology="tree", where="edge")
    trusted = {
        channel.name: setting.sampler_of(channel).expected
        for channel in setting.topology.gathering_channels
        if channel.trusted
    }
    sums = [value / (Z * C / trusted[source]) for (*_, source), value in seen.items() if source in trusted]
    sent = [value / (Z * C) for (*_, source), value in seen.items() if source.startswith("client")]
    assert (len(sums), len(sent)) == (2, 2 * 3)
    normal_and_apart(sums + sent)


def test_the_steps_of_private_training_add_up_to_their_noise():
    seen, setting = silent_run(rounds=2, unit="sample", where="client", samples="poisson")
    sent = []
    for (*_, source), value in seen.items():
        if source.startswith("client"):
            plan = setting.mechanism.plans[int(source.split("-")[1])]
            sent.append(value / (STILL * Z * math.sqrt(plan.steps) / plan.expected_batch))
    assert len(sent) == 2 * 6
    normal_and_apart(sent)


def test_the_noise_of_successive_steps_is_apart():
    steps = gaussian_steps(SIZE, rng=Streams.from_seed(0).rng(Purpose.NOISE))
    normal_and_apart([next(steps).double().numpy() for _ in range(6)])


class Drawn(list):
    """Every stream that was asked for: (name, key, generator, its state when it was new)."""

    def of(self, purposes):
        """The names of the streams from which numbers were drawn, once for every generator that drew some."""
        return [name for name, _, rng, new in self if name[0] in purposes and place_of(rng) != new]


def place_of(rng):
    """How far a generator has come; a secret stream does not say."""
    if isinstance(rng, KeystreamGenerator):
        return None
    state = rng.bit_generator.state
    return (*state["state"]["counter"].tolist(), state["buffer_pos"], state["has_uint32"])


@pytest.fixture
def drawn(monkeypatch):
    """What is asked of streams while the test runs."""
    found, whole = Drawn(), Streams.rng

    def noted(self, purpose, *, round=0, participant=-1, use=0):
        rng = whole(self, purpose, round=round, participant=participant, use=use)
        key = self.key(purpose, round=round, participant=participant, use=use)
        found.append(((purpose, round, participant, use), key, rng, place_of(rng)))
        return rng

    monkeypatch.setattr(Streams, "rng", noted)
    return found


SECRET = {Purpose.NOISE, Purpose.SELECTION, Purpose.COHORT}
ONCE = SECRET | {Purpose.BATCHES, Purpose.SCHEDULE, Purpose.ASSIGNMENT, Purpose.VIEWS, Purpose.STRAGGLERS}
RUNS = [
    Combination(clients="poisson"),
    Combination(where="client", clients="poisson"),
    Combination(topology="groups", algorithm="dp_ogl_plus"),
    Combination(topology="groups", algorithm="dp_ogl", clients="poisson"),
    Combination(topology="groups", algorithm="dp_ogl", clients="balanced"),
    Combination(topology="tree", where="edge", algorithm="h2fdp", clients="poisson"),
    Combination(topology="tree", where="edge", clients="fixed"),
    Combination(unit="sample", where="client", samples="balanced", split="yes"),
    Combination(topology="tree", where="edge", algorithm="h2fdp"),
    Combination(topology="clusters", algorithm="ifca", where="client"),
    Combination(split="yes"),
    Combination(unit="sample", where="client", samples="poisson", algorithm="scaffold"),
    Combination(unit="sample", where="server", samples="poisson"),
    Combination(unit="sample", where="edge", samples="poisson", topology="tree", algorithm="h2fdp"),
    Combination(unit="sample", where="client", mechanism="output"),
    Combination(unit="sample", where="client", mechanism="objective"),
]


@pytest.mark.parametrize(
    "c", RUNS, ids=lambda c: f"{c.algorithm}-{c.unit}-{c.where}-{c.mechanism}-{c.topology}-{c.clients}"
)
def test_no_stream_is_drawn_twice_and_no_two_streams_share_a_key(c, drawn, tmp_path):
    run(c, tmp_path / "run")
    names = drawn.of(ONCE)
    assert {purpose for purpose, *_ in names} & {Purpose.NOISE, Purpose.SELECTION}
    assert len(names) == len(set(names))
    assert len({key for _, key, *_ in drawn}) == len({name for name, *_ in drawn})


class Crash(BaseException):
    """Stands for the power cut."""


@pytest.mark.parametrize("place", ["append", "save_checkpoint"])
def test_a_resumed_run_draws_again_only_what_it_had_drawn_for_the_broken_round(place, drawn, tmp_path, monkeypatch):
    """The broken round is made again bit by bit, and no noise of an earlier round is ever used for a later one."""
    setting = engine.calibrate_noise(
        engine.build_experiment(parse(plain(Combination(where="client", clients="poisson"))))
    )

    def names_of(directory, *, resume=False, crash=0):
        drawn.clear()
        target = (loop.Ledger, "append") if place == "append" else (loop, "save_checkpoint")
        whole, calls = getattr(*target), iter(range(1, 100))

        def crashing(*args, **kwargs):
            result = whole(*args, **kwargs)
            if next(calls) == crash:
                raise Crash
            return result

        with monkeypatch.context() as patch:
            patch.setattr(*target, crashing)
            path = directory if resume else engine.new_directory(setting.experiment, directory)
            with suppress(Crash):
                engine.run_loop(setting, path, Simulator, resume=resume)
        return set(drawn.of(SECRET))

    unbroken = names_of(tmp_path / "unbroken")
    before = names_of(tmp_path / "broken", crash=2)
    after = names_of(tmp_path / "broken", resume=True)
    assert before | after == unbroken
    assert {name[1] for name in before & after} <= {2}


def test_two_runs_of_one_file_share_no_noise_when_it_is_the_operating_systems(drawn, tmp_path):
    file = plain(Combination(clients="poisson"))
    file["privacy"]["noise_source"] = "os"
    setting = engine.calibrate_noise(engine.build_experiment(parse(file)))
    keys = []
    for name in ("one", "other"):
        drawn.clear()
        engine.run_loop(setting, engine.new_directory(setting.experiment, tmp_path / name), Simulator, resume=False)
        keys.append({key for (purpose, *_), key, *_ in drawn if purpose in SECRET})
    assert keys[0]
    assert not keys[0] & keys[1]
