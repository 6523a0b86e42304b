"""`--workers auto`: forced timings decide, nothing is started that cannot help, and processes change no bit."""

import functools
import operator
import threading
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import sightline.api
from sightline import engine
from sightline.apps.cli.run import run_command as command
from sightline.errors import InvalidInput
from sightline.randomness import Streams
from sightline.runtimes import local_trainer, process_count
from sightline.runtimes.local_trainer import HereTrainer, LocalClients, PoolTrainer
from sightline.training import LocalWork
from sightline.training.call import CallId, CallKind, LocalTask, TrainingCall
from tests.runtimes.test_workers import experiment


class Times(process_count.Timing):
    """Seconds of a step, and of the same clients in one process and in several, as told."""

    def __init__(self, step, one=1.0, many=1.0):
        self.step, self.both, self.asked = step, (one, many), 0

    def one_step(self, work):
        return self.step

    def one_and_many(self, work, cores):
        self.asked += 1
        return self.both


@pytest.fixture
def measuring(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SIGHTLINE_PATHS", "measured")
    monkeypatch.setattr(process_count, "count_cores", lambda: 2)
    before = threading.active_count() - 1  # those that run the tests

    def count_threads():
        return threading.active_count() - before

    monkeypatch.setattr(process_count, "active_count", count_threads)

    def force(times):
        monkeypatch.setattr(process_count, "Timing", lambda: times)
        return times

    return force


def built(model="cnn", **privacy):
    return engine.calibrate_noise(engine.build_experiment(experiment(model, **privacy)))


@pytest.mark.parametrize("privacy", [{"unit": "none"}, {"unit": "sample", "noise_multiplier": 1.0}])
def test_processes_are_taken_where_training_is_long_and_they_are_faster(measuring, privacy):
    times = measuring(Times(step=10.0, one=1.0, many=0.6))
    assert process_count.choose_workers(built(**privacy)) == 2
    measuring(Times(step=10.0, one=1.0, many=1.0))
    assert process_count.choose_workers(built(**privacy)) == 2, "what was measured once counts"
    assert times.asked == 1


def test_one_process_where_they_are_hardly_faster(measuring):
    measuring(Times(step=10.0, one=1.0, many=0.95))
    assert process_count.choose_workers(built()) == 1


def test_a_short_run_starts_no_process_to_find_out(measuring):
    times = measuring(Times(step=0.01, one=1.0, many=0.5))
    setting = built()
    assert process_count.planned_steps(setting) == 2 * sum(2 * -(-size // 4) for size in range(5, 10))
    assert process_count.choose_workers(setting) == 1
    assert not times.asked


def test_nothing_is_measured_where_processes_cannot_help(measuring, monkeypatch):
    times = measuring(Times(step=10.0, one=1.0, many=0.1))
    assert process_count.choose_workers(built("mlp")) == 1
    monkeypatch.setattr(process_count, "count_cores", lambda: 1)
    assert process_count.choose_workers(built()) == 1
    monkeypatch.setattr(process_count, "count_cores", lambda: 2)
    monkeypatch.setenv("SIGHTLINE_PATHS", "rule")
    assert process_count.choose_workers(built()) == 1
    assert not times.asked


def test_twin_worlds_threads_and_children_have_one_process(measuring, monkeypatch):
    monkeypatch.setattr(process_count, "choose_workers", lambda setting: 2)
    setting, streams = built(), Streams.from_seed(0)
    make = process_count.simulator_maker("auto")
    workers = [make(setting, streams, streams) for _ in range(2)]
    assert [worker.processes for worker in workers] == [2, 1]
    for worker in workers:
        worker.close()
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        make = process_count.simulator_maker("auto")
    finally:
        done.set()
        other.join()
    assert make(setting, streams, streams).processes == 1
    monkeypatch.setattr(process_count.multiprocessing, "parent_process", lambda: "a parent")
    assert process_count.simulator_maker("auto")(setting, streams, streams).processes == 1


def test_a_run_says_how_many_trained_and_has_the_same_bits(tmp_path, measuring):
    measuring(Times(step=10.0, one=1.0, many=0.1))
    two = sightline.run(experiment(), out=tmp_path / "two")
    one = sightline.run(experiment(), out=tmp_path / "one", workers=1)
    assert (two.summary["workers"], one.summary["workers"]) == (2, 1)
    assert (two.directory / "model.safetensors").read_bytes() == (one.directory / "model.safetensors").read_bytes()


def test_the_real_measurement_gives_two_times():
    setting = built()
    work = process_count.measured_work(setting.experiment, setting.model, setting.federation.sizes.tolist())
    one, many = process_count.Timing().one_and_many(work, 2)
    assert 0 < one < 60
    assert 0 < many < 60
    assert 0 < process_count.Timing().one_step(work) < 60


@pytest.mark.parametrize("word", ["two", 1.5, True])
def test_other_words_than_auto_are_refused(tmp_path, word):
    with pytest.raises(InvalidInput, match="workers="):
        sightline.run(experiment(), out=tmp_path / "run", workers=word)


def test_the_command_takes_a_number_or_auto(tmp_path):
    answer = CliRunner().invoke(command, [str(tmp_path / "none.toml"), "--workers", "many"])
    assert answer.exit_code == 2
    assert "auto" in answer.output


WORK = LocalWork(learning_rate=0.1, batch_size=4, epochs=1)


def call_of(setting, cohort, *, seed=0):
    """Rows for everything that a client may have a row of."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(cohort), setting.model.parameters, generator=generator) / 100
    task = LocalTask(proximal=0.1, anchor=rows + 0.1, linear=rows[0], mask=(rows > 0).float())
    return TrainingCall(CallKind.TRAIN, cohort, rows, CallId(1, seed), task)


def clients_of(setting):
    streams, shards = Streams.from_seed(0), [client.train for client in setting.federation.clients]
    return LocalClients(setting.model, shards, WORK, streams, streams)


@pytest.fixture
def both():
    setting = built()
    clients = clients_of(setting)
    pool = PoolTrainer(clients, 2)
    yield setting, HereTrainer(clients), pool
    pool.close()


def copied(blocks):
    return [(places.tolist(), ends.clone()) for places, ends in blocks]


def rows_of(blocks):
    places, ends = zip(*copied(blocks), strict=True)
    assert functools.reduce(operator.iadd, places, []) == sorted(functools.reduce(operator.iadd, places, []))
    return torch.cat(ends)


def test_own_starts_and_terms_of_every_client_reach_it_over_many_turns(both):
    setting, here, pool = both
    cohort = [client % 5 for client in range(23)]
    assert pool._rows == 8
    assert torch.equal(rows_of(here.run(call_of(setting, cohort))), rows_of(pool.run(call_of(setting, cohort))))


def test_whoever_stops_early_leaves_nothing_behind(both):
    setting, here, pool = both
    cohort = [client % 5 for client in range(20)]
    early = pool.run(call_of(setting, cohort, seed=1))
    next(early)
    early.close()
    assert torch.equal(rows_of(pool.run(call_of(setting, cohort))), rows_of(here.run(call_of(setting, cohort))))


def test_a_call_inside_another_changes_neither(both):
    setting, here, pool = both
    cohort = [client % 5 for client in range(20)]
    inner, outer = [], []
    for _places, ends in pool.run(call_of(setting, cohort)):
        inner.append(rows_of(pool.run(call_of(setting, cohort, seed=len(inner)))))
        outer.append(ends.clone())
    assert torch.equal(torch.cat(outer), rows_of(here.run(call_of(setting, cohort))))
    for seed, found in enumerate(inner):
        assert torch.equal(found, rows_of(here.run(call_of(setting, cohort, seed=seed))))


def test_rows_stay_while_the_next_turn_is_trained(both, monkeypatch):
    """What was handed out does not change until the next rows are asked for, however long the reader takes."""
    setting, here, pool = both
    cohort = [client % 5 for client in range(24)]
    expected = rows_of(here.run(call_of(setting, cohort)))
    for places, ends in pool.run(call_of(setting, cohort)):
        before = ends.clone()
        while pool._waited_for and not all(pipe.poll(0.01) for pipe in pool._waited_for[0]):
            pass
        assert torch.equal(ends, before)
        assert torch.equal(ends, expected[torch.as_tensor(places)])


def test_an_error_in_a_later_turn_is_raised_and_the_next_call_works(both, monkeypatch):
    setting, here, pool = both
    cohort = [client % 5 for client in range(20)]
    # Only the process that trains this client looks at its epochs.
    broken = replace(call_of(setting, cohort), epochs=[1.0] * 17 + [None] + [1.0] * 2)
    with pytest.raises(TypeError):
        for _ in pool.run(broken):
            pass
    assert torch.equal(rows_of(pool.run(call_of(setting, cohort))), rows_of(here.run(call_of(setting, cohort))))


def test_rooms_of_one_row_for_each_process_are_enough(monkeypatch):
    monkeypatch.setattr(local_trainer, "ROWS_BYTES", 1)
    setting = built()
    clients, cohort = clients_of(setting), [0, 1, 2, 3, 4]
    pool = PoolTrainer(clients, 2)
    found = rows_of(pool.run(call_of(setting, cohort)))
    pool.close()
    assert torch.equal(found, rows_of(HereTrainer(clients).run(call_of(setting, cohort))))


@pytest.mark.parametrize("name", ["sample-level", "balanced"])
def test_a_plan_takes_about_as_long_as_its_run(tmp_path, name):
    """It said 235 s for a run of 0.6 s; the factor is wide, as other programs may run beside one of the two."""
    planned = sightline.api.plan(f"examples/{name}.toml")["seconds"]
    done = sightline.run(f"examples/{name}.toml", out=tmp_path / "run", workers=1, progress=False)
    assert planned / 10 < done.summary["seconds"] < 10 * planned
