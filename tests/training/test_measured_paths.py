"""The choice of paths: forced timings choose each of them, and the file where they are kept survives everything."""

import json
import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from sightline.config import parse
from sightline.data import Kind
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import LocalWork, machine, measure_paths, train_local
from sightline.training import measure_paths as planned_work
from sightline.training.local_work import BY_RULE, Paths, read_paths
from sightline.training.measure_paths import CANDIDATES, Candidate, MeasuredWork, available_paths, choose_measured


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SIGHTLINE_PATHS", "measured")
    return tmp_path / "cache" / "sightline" / "paths.json"


FIRST = {("plain", "stack"), ("plain", "loop"), ("record", "unfold"), ("noise", "torch")}
"""What every machine has; the rest depends on compilers and processors."""


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch):
    kept = tuple(one for one in CANDIDATES if (one.field, one.path) in FIRST)
    monkeypatch.setattr(measure_paths, "CANDIDATES", kept)
    return kept


def small_cnn(shape=(1, 8, 8)):
    return build_model("cnn", input_shape=shape, classes=3, kind=Kind.IMAGE, settings={})


def small_mlp():
    return build_model("mlp", input_shape=(6,), classes=3, kind=Kind.VECTOR, settings={"hidden": [4]})


class Clock:
    """A clock that advances only when a path runs, by `seconds` for each path."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.runs = 0.0, []

        def run(work, paths):
            self.runs.append(paths)
            self.now += math.fsum(seconds.get(word, 0.0) for word in paths.describe().values())

        monkeypatch.setattr(MeasuredWork, "run", run)

    def __call__(self):
        return self.now


def plain_work(model=None, **changes):
    return MeasuredWork(model or small_cnn(), replace(LocalWork(learning_rate=0.1), **changes), width=4, private=False)


@pytest.fixture
def more_candidates(few_candidates, monkeypatch):
    """Paths that other code may bring: one for plain steps and two for private ones."""
    more = [("plain", "compiled"), ("record", "grouped"), ("noise", "compiled")]
    found = (*few_candidates, *(Candidate(*one, lambda model, work, width: True) for one in more))
    monkeypatch.setattr(measure_paths, "CANDIDATES", found)


@pytest.mark.parametrize("fastest", ["stack", "loop", "compiled"])
def test_the_fastest_plain_path_is_taken(cache, monkeypatch, more_candidates, fastest):
    times = {path: 0.02 if path == fastest else 0.05 for path in ("stack", "loop", "compiled")}
    clock = Clock(monkeypatch, times)
    assert choose_measured(plain_work(), clock=clock) == Paths(plain=fastest)
    assert {paths.plain for paths in clock.runs} == set(times)


@pytest.mark.parametrize("record", ["unfold", "grouped"])
@pytest.mark.parametrize("noise", ["torch", "compiled"])
def test_the_fastest_private_paths_are_taken(cache, monkeypatch, more_candidates, record, noise):
    times = {path: 0.02 if path in (record, noise) else 0.05 for path in ("unfold", "grouped", "torch", "compiled")}
    work = replace(plain_work(), private=True)
    assert choose_measured(work, clock=Clock(monkeypatch, times)) == Paths(record=record, noise=noise)


def test_the_rule_is_kept_where_another_is_hardly_faster(cache, monkeypatch):
    clock = Clock(monkeypatch, {"stack": 1.0, "loop": 0.97})
    assert choose_measured(plain_work(), clock=clock) == BY_RULE


def test_a_slow_candidate_is_tried_twice_at_most_and_time_ends_a_comparison(cache, monkeypatch):
    clock = Clock(monkeypatch, {"stack": 0.01, "loop": 0.1})
    choose_measured(plain_work(), clock=clock)
    assert sum(paths.plain == "loop" for paths in clock.runs) == 2
    clock = Clock(monkeypatch, {"stack": 3.0, "loop": 2.0})
    assert choose_measured(replace(plain_work(), width=5), clock=clock).plain == "loop"
    assert len(clock.runs) == 2


def test_what_was_measured_once_is_not_measured_again(cache, monkeypatch):
    assert choose_measured(plain_work(), clock=Clock(monkeypatch, {"stack": 0.05, "loop": 0.01})).plain == "loop"
    again = Clock(monkeypatch, {"stack": 0.01, "loop": 0.05})
    assert choose_measured(plain_work(), clock=again).plain == "loop"
    assert not again.runs
    other = replace(plain_work(), width=8)
    assert choose_measured(other, clock=again).plain == "stack"
    monkeypatch.setattr(machine, "machine_key", lambda: "another processor")
    assert choose_measured(plain_work(), clock=again).plain == "stack"
    assert len(json.loads(cache.read_text())) == 2


def test_one_candidate_measures_nothing_and_leaves_no_file(cache, monkeypatch):
    clock = Clock(monkeypatch, {})
    assert choose_measured(plain_work(small_mlp()), clock=clock) == BY_RULE
    assert not clock.runs
    assert not cache.exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"KEY": 3}', '{"KEY": {"WORK": 3}}', '{"KEY": {"WORK": {"paths": {"plain": "gone"}}}}'],
)
def test_a_damaged_file_is_ignored_and_written_anew(cache, monkeypatch, content):
    work = plain_work()
    key = work.key
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("KEY", machine.machine_key()).replace("WORK", key))
    assert choose_measured(work, clock=Clock(monkeypatch, {"stack": 0.05, "loop": 0.01})).plain == "loop"
    kept = json.loads(cache.read_text())[machine.machine_key()][key]
    assert kept["paths"]["plain"] == "loop"


def test_a_disk_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert choose_measured(plain_work(), clock=Clock(monkeypatch, {"stack": 0.05, "loop": 0.01})).plain == "loop"


def _keep_some(first):
    for number in range(20):
        machine.keep_measured(f"work {number}", {"by": first})
        machine.keep_measured(f"work of {first} {number}", {"by": first})


def test_two_processes_lose_nothing_and_agree(cache):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_keep_some, args=(name,)) for name in ("one", "two")]
    for process in both:
        process.start()
    for process in both:
        process.join()
    (kept,) = json.loads(cache.read_text()).values()
    assert len(kept) == 60
    assert machine.keep_measured("work 0", {"by": "three"}) == machine.recall_measured("work 0") == kept["work 0"]
    assert sorted(path.name for path in cache.parent.iterdir()) == ["paths.json", "paths.lock"]


def experiment(**local):
    return parse({"rounds": 1, "model": {"name": "cnn"}, "local": local, "privacy": {"unit": "none"}})


def test_the_setting_and_the_variable_switch_measuring_off(cache, monkeypatch):
    monkeypatch.setattr(planned_work, "choose_measured", lambda work: Paths(plain="loop"))
    monkeypatch.delenv("SIGHTLINE_PATHS")
    model, sizes = small_cnn(), [10, 10]
    assert planned_work.choose_paths(experiment(), model, sizes).plain == "loop"
    assert planned_work.choose_paths(experiment(paths="rule"), model, sizes) == BY_RULE
    monkeypatch.setenv("SIGHTLINE_PATHS", "rule")
    assert planned_work.choose_paths(experiment(paths="measured"), model, sizes) == BY_RULE
    monkeypatch.setenv("SIGHTLINE_PATHS", "fast")
    with pytest.raises(InvalidInput, match="SIGHTLINE_PATHS=fast"):
        planned_work.choose_paths(experiment(), model, sizes)


def test_a_real_comparison_finds_a_path_that_exists(cache):
    work = plain_work()
    found = choose_measured(work)
    assert found.plain in available_paths(work.model, work.work, private=False, width=4)["plain"]
    kept = json.loads(cache.read_text())[machine.machine_key()][work.key]
    assert set(kept["seconds"]["plain"]) >= {"stack", "loop"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_loop_is_the_stack_up_to_rounding(momentum):
    model, rng = small_cnn(), np.random.default_rng(0)
    shard = plain_work(model).made_up_shard()
    start, work = model.init(rng), LocalWork(learning_rate=0.1, momentum=momentum, batch_size=4, epochs=2)
    ends = [
        next(iter(train_local(model, start, [shard], replace(work, paths=paths), rngs=[np.random.default_rng(1)])))[1]
        for paths in (BY_RULE, Paths(plain="loop"))
    ]
    assert float((ends[0] - ends[1]).abs().max()) <= 1e-5
    assert float((ends[0] - start).abs().max()) > 1e-3


def test_words_that_nobody_knows_are_refused():
    with pytest.raises(InvalidInput, match=r"paths\.plain=magic"):
        read_paths({"plain": "magic"})
    # A path of an older version: its bits cannot be reproduced, so its runs are not resumed.
    with pytest.raises(
        InvalidInput, match=r"paths\.plain=folded.*must be one of stack, loop, compiled; use the version that"
    ):
        read_paths({"plain": "folded"})
    with pytest.raises(InvalidInput, match=r"paths\.speed=magic"):
        read_paths({"speed": "magic"})


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000", math.inf), ("150000 100000", 1.5), ("nonsense", math.inf)]
)
def test_a_containers_share_limits_the_cores(tmp_path, monkeypatch, content, cores):
    (tmp_path / "cpu.max").write_text(content)
    for name in ("CPU_MAX", "QUOTA", "PERIOD"):
        monkeypatch.setattr(machine, name, tmp_path / ("cpu.max" if name == "CPU_MAX" else "none"))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.read_quota() == cores
    assert machine.count_cores() == min(8, int(min(8, cores)))
    assert f"{machine.count_cores()} cores" in machine.describe_processor()
