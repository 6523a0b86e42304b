"""The reproduction's own files: every run is a valid experiment, the noise is the ledger's, the page says what is there."""

from itertools import combinations
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from papers.clustered.accuracy import (
    EVERYBODY,
    HELD_OUT,
    TUNING,
    Accuracy,
    causes,
    cifar_jobs,
    find_tuned,
    jobs,
    printed,
    tuning,
)
from papers.clustered.batches import LATER_BATCHES, measure_updates, true_separation
from papers.clustered.claims import list_findings, say_to_authors
from papers.clustered.first_round import fitted, noised, picture
from papers.clustered.noise import composition, noise_of
from papers.clustered.page import write_page
from papers.clustered.parts import PARTS, WORK
from papers.findings import Verdict
from papers.jobs import LINES, read
from sightline import accounting
from sightline.algorithms.clustered.mixture import KINDS, fit_mixture
from sightline.config import parse
from sightline.events import Exponential, Gaussian, Poisson

ROOT = Path(__file__).parents[2]
TRUTH = [0] * 3 + [1] * 6 + [2] * 6 + [3] * 6


def test_every_job_has_a_key_of_its_own_and_somebody_to_do_it():
    everything = [job for name, part in PARTS.items() if name != "quick" for job in part()]
    keys = {job.key for job in everything}
    assert len(keys) == len(everything)
    assert {type(job) for job in everything} == set(WORK)
    assert {job.key for job in PARTS["quick"]()} <= keys


def test_every_run_is_a_valid_experiment():
    for job in (*jobs(), *causes(), *cifar_jobs(), *tuning()):
        assert parse(job.plain).privacy.epsilon == job.epsilon


@pytest.mark.parametrize("algorithm", EVERYBODY)
def test_cifar_is_run_at_the_grids_best_and_no_reported_run_has_its_seed(algorithm):
    kept = read(ROOT / "papers" / "clustered" / LINES)
    job = Accuracy(algorithm, "rotation", 5, 0, "cifar10")
    rate, penalty = find_tuned(kept, "cifar10", algorithm)
    assert job.plain["local"]["learning_rate"] == rate
    assert job.plain["algorithm"].get("penalty", penalty) == penalty
    assert all(row["seed"] == TUNING for row in kept if row["part"] == "tuning")
    assert all(row.get("seed") != TUNING for row in kept if row["part"] != "tuning")


def test_the_grid_is_judged_by_examples_that_no_model_is_trained_on():
    for job in tuning():
        assert parse(job.plain).data.validation_fraction == HELD_OUT
    assert all(parse(job.plain).data.validation_fraction == 0 for job in (*jobs(), *cifar_jobs()))


def test_the_printed_run_has_the_noise_of_the_whole():
    (job,) = printed()
    experiment = parse(job.plain)
    assert experiment.data.train_samples is None
    assert experiment.model.name == "cnn"
    assert experiment.privacy.noise_multiplier == noise_of(3, 8000)
    assert experiment.rounds == 3


def test_true_clusters_are_apart_by_their_own_means_and_radii():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0], [10, 0], [0, 20], [30, 30]])
    points = centres[TRUTH] + rng.standard_normal((21, 2))
    naive = min(
        np.linalg.norm(points[a].mean(0) - points[b].mean(0))
        / 2
        / max(np.sqrt(points[c].var(0).mean()) for c in (a, b))
        for a, b in combinations([[n for n in range(21) if TRUTH[n] == m] for m in range(4)], 2)
    )
    assert true_separation(points, TRUTH) == pytest.approx(naive)
    assert true_separation(rng.standard_normal((21, 2)), TRUTH) < 1


def test_the_noise_counts_round_one_later_rounds_and_selections():
    found = composition(1.5, 1000, 1000, 32, 20, 0.09)
    later = 19 * ceil(1000 / 32)
    assert found == {Gaussian(1.5): 1, Poisson(32 / 1000, Gaussian(1.5)): later, Exponential(0.09): 2}
    z = noise_of(3, 400, rounds=10)
    assert accounting.epsilon(composition(z, 400, 400, 32, 10, 0.09), 1e-4) <= 3


def accuracy_runs(scores, seeds=range(3)):
    """Runs that were never made: (score, purity) of every algorithm, each seed a point better than the last."""
    shared = {"part": "accuracy", "partition": "rotation", "epsilon": 3, "auto": False, "source": "mnist", "worst": 0.1}
    shared |= {"steps": "main", "count": 4, "mss": 5.0, "noise_multiplier": 2.0, "cpu_seconds": 30.0}
    return [
        shared | {"key": f"{name}{seed}", "algorithm": name, "seed": seed, "purity": purity,
                  "accuracy": score + seed / 100, "minority_accuracy": score - 0.1 - seed / 100}
        for name, (score, purity) in scores.items()
        for seed in seeds
    ]  # fmt: skip


SCORES = {"rdpcfl": (0.8, 1.0), "ifca": (0.7, 0.8), "fedavg": (0.5, None), "local": (0.81, None), "mrmtl": (0.65, None)}


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
    measured = measure_updates(updates, TRUTH, 0)
    later = {"key": "later", "part": "later", "first": 1000, "distances": [0.1], "cpu_seconds": 1.0}
    later["cells"] = [
        {"later": b, "draw": 0, "noise_multiplier": 1.0} | measured for b in LATER_BATCHES for _ in range(2)
    ]
    return [first, later, *accuracy_runs(SCORES)]


def test_the_page_says_what_the_results_say(rows, tmp_path):
    write_page(rows, tmp_path / "clustered.md")
    page = (tmp_path / "clustered.md").read_text()
    assert "R-DPCFL is ahead of IFCA, private selection for all clients, MNIST" in page
    assert "epsilon 3: +10.0 ± 0.0 (3 seeds)" in page
    assert "| MNIST | rotation | `spanning` | 1/1 | - | 1/1 |" in page
    assert "IFCA: epsilon 3: 3 of 3 | R-DPCFL: epsilon 3: 0 of 3 | reproduced" in page
    assert "epsilon 5:" not in page
    for name in ("count", "mss", "figure-11", "figures-11-and-12-robustness"):
        assert (tmp_path / f"clustered-{name}.svg").stat().st_size > 1000
    assert "wrong clusters in 0 of 3 runs, IFCA with private choices in 3 of 3" in say_to_authors(rows)[0]


def test_a_baseline_that_is_ahead_is_said_to_be(rows):
    found = {f.claim: f.verdict for f in list_findings(rows) if f.result == "Figure 11"}
    assert found["R-DPCFL is ahead of Local for all clients, MNIST"] is Verdict.NOT_REPRODUCED
    assert found["R-DPCFL is ahead of MR-MTL for all clients, MNIST"] is Verdict.REPRODUCED


def test_two_seeds_are_not_judged():
    assert not [f for f in list_findings(accuracy_runs(SCORES, range(2))) if f.result == "Figure 11"]


def test_a_page_of_nothing_is_a_page(tmp_path):
    write_page([], tmp_path / "clustered.md")
    assert "## Findings" in (tmp_path / "clustered.md").read_text()
