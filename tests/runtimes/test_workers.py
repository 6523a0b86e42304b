"""One process or several: the same bits."""

import numpy as np
import pytest
import torch

import sightline
from sightline.config import parse
from sightline.errors import InvalidInput, Refused, SightlineError
from sightline.runtimes import local_trainer


def images(*, clients, rng):
    for number in range(clients):
        size = 5 + number
        x = rng.standard_normal((size + 2, 1, 8, 8)).astype(np.float32)
        y = rng.integers(0, 3, size + 2)
        x[0] *= 1000 if number == 2 else 1
        yield x[:size], y[:size], x[size:], y[size:]


class Own(torch.nn.Module):
    """A module of the user's own that drops units at random."""

    def __init__(self, classes):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 6), torch.nn.Linear(6, classes)

    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(torch.nn.functional.dropout(h - h.mean(0) * 0.1, 0.5, self.training))


class Late(Own):
    """It begins to remember when it meets the third client's data."""

    kept = 0.0

    def forward(self, x):
        if len(x) == 4 and x.abs().max() > 50:
            self.kept = float(x.detach().mean())
        return super().forward(x + self.kept)


def experiment(model="cnn", **privacy):
    return parse(
        {
            "rounds": 2,
            "data": {
                "source": "tests.runtimes.test_workers:images",
                "clients": 5,
                "partition": "natural",
                "classes": 3,
            },
            "model": {"name": model},
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


@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.slow
def test_modules_of_ones_own_give_the_same_bits_too(tmp_path, unit):
    own = experiment("tests.runtimes.test_workers:Own", unit=unit, noise_multiplier=1.0)
    runs = [sightline.run(own, out=tmp_path / str(workers), workers=workers, progress=False) for workers in (1, 2)]
    one, two = ((run.directory / "model.safetensors").read_bytes() for run in runs)
    assert one == two


@pytest.mark.parametrize("workers", [1, 2])
def test_a_memory_that_begins_in_a_run_ends_it(tmp_path, workers):
    late = experiment("tests.runtimes.test_workers:Late", unit="client", noise_multiplier=1.0)
    with pytest.raises(Refused, match="forward changes attribute 'kept'"):
        sightline.run(late, out=tmp_path / "run", workers=workers, progress=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_blocks_do_not_change_the_bits(tmp_path, monkeypatch):
    whole = sightline.run(experiment(), out=tmp_path / "whole", workers=2)
    monkeypatch.setattr(local_trainer, "ROWS_BYTES", 1)
    small = sightline.run(experiment(), out=tmp_path / "small", workers=2)
    name = "model.safetensors"
    assert (whole.directory / name).read_bytes() == (small.directory / name).read_bytes()


def test_an_error_in_a_process_reaches_the_user(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise SightlineError("no luck today")

    monkeypatch.setattr(local_trainer, "train_local", broken)
    with pytest.raises(SightlineError, match="no luck today"):
        sightline.run(experiment(), out=tmp_path / "run", workers=2)


def test_no_processes_at_all_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="workers=0"):
        sightline.run(experiment(), out=tmp_path / "run", workers=0)
    assert not (tmp_path / "run").exists()
