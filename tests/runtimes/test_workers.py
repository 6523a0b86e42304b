"""One process or several: the same bits."""

import numpy as np
import pytest

import sightline
from sightline.config import parse
from sightline.errors import InvalidInput, SightlineError
from sightline.runtimes import trainer


def images(*, clients, rng):
    for number in range(clients):
        size = 5 + number
        x = rng.standard_normal((size + 2, 1, 8, 8)).astype(np.float32)
        y = rng.integers(0, 3, size + 2)
        yield x[:size], y[:size], x[size:], y[size:]


def experiment(**privacy):
    return parse(
        {
            "rounds": 2,
            "data": {
                "source": "tests.runtimes.test_workers:images",
                "clients": 5,
                "partition": "natural",
                "classes": 3,
            },
            "model": {"name": "cnn"},
            "local": {"epochs": 2, "batch_size": 4, "stragglers": 0.0},
            "privacy": privacy or {"unit": "none"},
        }
    )


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "none"},
        {"unit": "client", "noise_multiplier": 1.0},
        {"unit": "client", "noise_multiplier": 1.0, "where": "client"},
        {"unit": "sample", "noise_multiplier": 1.0},
    ],
    ids=lambda privacy: "-".join(str(v) for v in privacy.values()),
)
def test_two_processes_give_the_same_bits(tmp_path, privacy):
    models = []
    for workers in (1, 2, 3):
        run = sightline.run(experiment(**privacy), out=tmp_path / str(workers), workers=workers)
        models.append((run.directory / "model.safetensors").read_bytes())
    assert models[0] == models[1] == models[2]


def test_blocks_do_not_change_the_bits(tmp_path, monkeypatch):
    whole = sightline.run(experiment(), out=tmp_path / "whole", workers=2)
    monkeypatch.setattr(trainer, "ROWS_BYTES", 1)
    small = sightline.run(experiment(), out=tmp_path / "small", workers=2)
    name = "model.safetensors"
    assert (whole.directory / name).read_bytes() == (small.directory / name).read_bytes()


def test_an_error_in_a_process_reaches_the_user(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise SightlineError("no luck today")

    monkeypatch.setitem(trainer.CALLS, "train", broken)
    with pytest.raises(SightlineError, match="no luck today"):
        sightline.run(experiment(), out=tmp_path / "run", workers=2)


def test_no_processes_at_all_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="workers=0"):
        sightline.run(experiment(), out=tmp_path / "run", workers=0)
    assert not (tmp_path / "run").exists()
