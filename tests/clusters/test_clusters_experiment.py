"""The reproduction's own files: every run is a valid experiment, the noise is the ledger's, the page says what is there."""

from math import ceil

import numpy as np
import pytest

from experiments.clustered.accuracy import jobs
from experiments.clustered.first_round import fitted, noised, picture
from experiments.clustered.noise import composition, noise_of
from experiments.clustered.page import write_page
from experiments.clustered.parts import PARTS, WORK
from sightline import accounting
from sightline.algorithms.clustered.mixture import KINDS, fit_mixture
from sightline.config import parse
from sightline.events import Exponential, Gaussian, Poisson

TRUTH = [0] * 3 + [1] * 6 + [2] * 6 + [3] * 6


def test_every_job_has_a_key_of_its_own_and_somebody_to_do_it():
    everything = [job for part in PARTS.values() for job in part()]
    assert len({job.key for job in everything}) == len(everything)
    assert {type(job) for job in everything} == set(WORK)


def test_every_run_is_a_valid_experiment():
    for job in jobs():
        assert parse(job.plain).privacy.epsilon == job.epsilon


def test_the_noise_counts_round_one_later_rounds_and_selections():
    found = composition(1.5, 1000, 1000, 32, 20, 0.09)
    later = 19 * ceil(1000 / 32)
    assert found == {Gaussian(1.5): 1, Poisson(32 / 1000, Gaussian(1.5)): later, Exponential(0.09): 2}
    z = noise_of(3, 400, rounds=10)
    assert accounting.epsilon(composition(z, 400, 400, 32, 10, 0.09), 1e-4) <= 3


@pytest.fixture(scope="module")
def rows():
    """A first round of four far clusters, and runs that were never made."""
    rng = np.random.default_rng(0)
    sums = (50 * rng.standard_normal((4, 300)))[TRUTH].astype(np.float32)
    updates = noised(sums, 1.0, seed=0, use=0)
    cells, louder = [], []
    for points in ("principal", "spanning"):
        facts = {"epsilon": 3, "noise_multiplier": 1.9, "points": points}
        cells.append(facts | fitted(KINDS[points](updates), TRUTH, 0))
        louder.append({"factor": 3, "points": points, "mss": 1.1, "known_right": False})
    plane = picture(fit_mixture(KINDS["principal"](updates)(4), 4, seed=0))
    first = {"key": "a", "part": "first", "source": "mnist", "partition": "rotation", "seed": 0, "samples": 8000}
    first |= {"parameters": 300, "cpu_seconds": 60.0, "cells": cells, "louder": louder, "points": plane}
    judged = {"part": "accuracy", "partition": "rotation", "epsilon": 3, "seed": 0, "auto": False, "worst": 0.1}
    judged |= {"count": 4, "mss": 5.0, "purity": 1.0, "noise_multiplier": 2.0, "curve": [], "cpu_seconds": 30.0}
    scores = {"rdpcfl": 0.8, "ifca": 0.7, "fedavg": 0.5, "local": 0.6, "mrmtl": 0.65, "oracle_clusters": 0.82}
    runs = [judged | {"key": a, "algorithm": a, "accuracy": s, "minority_accuracy": s - 0.1} for a, s in scores.items()]
    return [first, *runs]


def test_the_page_says_what_the_results_say(rows, tmp_path):
    write_page(rows, tmp_path / "clustered.md")
    page = (tmp_path / "clustered.md").read_text()
    assert "R-DPCFL is ahead of the baselines for all clients, rotation, epsilon = 3 | 80.0 against ifca 70.0" in page
    assert "| MNIST | rotation | `spanning` | 1/1 | - | 1/1 |" in page
    assert "Processor minutes: 4 in all (first 1.0, accuracy 3.0)" in page
    assert "epsilon = 5" not in page
    for name in ("count", "mss", "accuracy"):
        assert (tmp_path / f"clustered-{name}.svg").stat().st_size > 1000


def test_a_page_of_nothing_is_a_page(tmp_path):
    write_page([], tmp_path / "clustered.md")
    assert "Claims and verdicts" in (tmp_path / "clustered.md").read_text()
