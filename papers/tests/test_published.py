"""The papers' own numbers, as they compute them; and what our accountant needs instead."""

import json
import math

import pytest
from click.testing import CliRunner

from papers import published
from sightline import accounting
from sightline.apps.cli.main import run_arguments
from sightline.errors import InvalidInput

TARGET = {"epsilon": 8.0, "delta": 1e-5}
BATCH = 5000
"""Expected batch of Table 1: one tenth of CIFAR-10's 50,000 training images."""


@pytest.mark.parametrize(
    ("moments", "printed"),
    [
        (lambda z: published.poisson_moments(z, 655 / 2000, 2000), 10.196),
        (lambda z: published.balanced_moments(z, 2000, 655), 10.175),
        (lambda z: published.poisson_moments(z, 0.1, 1000), 2.340),
        (lambda z: published.balanced_moments(z, 1000, 100), 2.358),
    ],
)
def test_noise_of_section_4_2(moments, printed):
    found = published.calibrate_published(moments, **TARGET)
    assert found == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize(("parts", "printed"), [(1, 6.618e-4), (3, 5.440e-4), (8, 4.99e-4)])
def test_noise_of_table_1(parts, printed):
    found = published.calibrate_published(
        lambda z: published.split_moments(z, parts, 0.1, 1000, unsplit_noise=z), **TARGET
    )
    assert found / BATCH == pytest.approx(printed, abs=4e-7)


def test_the_printed_noise_of_eight_parts_costs_more_than_eight():
    moments = published.split_moments(4.96e-4 * BATCH, 8, 0.1, 1000, unsplit_noise=4.96e-4 * BATCH)
    assert published.classic_epsilon(moments, 1e-5) == pytest.approx(8.05, abs=0.01)


@pytest.mark.parametrize(
    ("scheme", "printed"),
    [
        (accounting.poisson(noise=1.0, rate=655 / 2000, steps=2000), 10.196),
        (accounting.balanced(noise=1.0, steps=2000, uses=655), 10.175),
        (accounting.poisson(noise=1.0, rate=0.1, steps=1000), 2.340),
        (accounting.balanced(noise=1.0, steps=1000, uses=100), 2.358),
        (accounting.split(noise=1.0, parts=3, rate=0.1, steps=1000, unsplit_noise=1.0), 5.440e-4 * BATCH),
        (accounting.split(noise=1.0, parts=8, rate=0.1, steps=1000, unsplit_noise=1.0), 4.99e-4 * BATCH),
    ],
)
def test_we_need_less_noise_in_every_row(scheme, printed):
    assert scheme.calibrated(**TARGET).noise_multiplier < 0.97 * printed


CLUSTERED = {"samples": 8000, "batch_size": 32, "rounds": 200, "selections": 20, "delta": 1e-4}


@pytest.mark.parametrize(("epsilon", "printed"), [(3, 2.908), (4, 2.245), (5, 1.853), (10, 1.089), (15, 0.858)])
def test_noise_of_the_clustered_split(epsilon, printed):
    noise = published.clustered_noise(**CLUSTERED, selection_epsilon=0.03 * epsilon, epsilon=epsilon)
    assert noise == pytest.approx(printed, abs=5e-4)


def test_choices_that_use_up_the_budget_leave_no_finite_noise():
    dear = CLUSTERED | {"selections": 3}
    assert published.clustered_noise(**dear, selection_epsilon=0.6, epsilon=2.0) == math.inf


def test_a_clipped_model_costs_far_more_than_theorem_6_2_says():
    claimed = published.output_epsilon(rounds=4, clip_norm=1.0, noise_std=0.02, size=100, delta=1e-5)
    true = accounting.gaussian(noise=0.02 / 2, steps=4).epsilon(delta=1e-5)
    assert true > 100 * claimed


@pytest.mark.parametrize(
    "words",
    [
        "clustered --samples 800 --batch-size 80 --rounds 10 --epsilon 6 --delta 1e-4",
        "output --rounds 4 --noise-std 1 --size 100",
        "objective --rounds 4 --rate 10 --curvature 1 --size 100",
    ],
)
def test_every_command_prints_numbers_with_the_notice(words, capsys):
    assert run_arguments([*words.split(), "--json"], published.command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("notice") == published.NOTICE
    assert all(value > 0 for value in answer.values())


def ask(*words):
    done = CliRunner().invoke(published.command, [*words, "--json"], standalone_mode=False)
    return json.loads(done.stdout)


def test_partitioning_by_command():
    """Without sampling Theorem 3.11 is the Gaussian's moments; ours is the smaller one in every kind."""
    found = ask("partitioning", "poisson", "--noise", "4", "--steps", "10")
    by_hand = min(10 * a / (2 * 4**2) + math.log(1e5) / (a - 1) for a in range(2, 65))
    assert found["epsilon"] == pytest.approx(by_hand)
    for kind in (("balanced", "--uses", "3"), ("split", "--parts", "3", "--rate", "0.2"), ("poisson", "--rate", "0.1")):
        found = ask("partitioning", *kind, "--noise", "2", "--steps", "30")
        assert 0 < found["costs"] < found["epsilon"]


@pytest.mark.parametrize(("parts", "printed"), [("1", 6.618e-4), ("3", 5.440e-4), ("8", 4.99e-4)])
def test_table_1_by_command(parts, printed):
    words = ["--parts", parts, "--rate", "0.1", "--steps", "1000", "--unsplit-noise", "1", "--epsilon", "8"]
    found = ask("partitioning", "split", *words)
    assert found["noise"] / BATCH == pytest.approx(printed, abs=4e-7)
    assert 0 < found["costs"] < found["epsilon"] == pytest.approx(8)


@pytest.mark.parametrize(
    "words",
    ["split --steps 3", "split --noise 1 --epsilon 8 --steps 3", "poisson --noise 1 --steps 3 --unsplit-noise 1"],
)
def test_partitioning_refuses_words_that_contradict(words):
    done = CliRunner().invoke(published.command, ["partitioning", *words.split()], standalone_mode=False)
    assert isinstance(done.exception, InvalidInput)


def test_groups_by_command():
    """Eq. (17): S (floor((t - 1) / S) - rho) = 5 (8 - 2); every bound falls with the distance."""
    near, far = (ask("groups", "--epochs", "41", "--noise", "4", "--distance", rho) for rho in ("1", "2"))
    assert (near["releases"], far["releases"]) == (35, 30)
    for name in ("theorem_1", "theorem_2", "theorem_2_plus"):
        assert 0 < far[name] < near[name]
    assert 0 < near["costs"] < near["theorem_1"]
    assert 0 < near["costs_plus"] < near["costs"]
    assert "note" not in near


def test_groups_charge_nothing_for_no_release_and_say_which_rate_is_ignored():
    """Epoch 5 with S = 5 comes before the first exchange; Theorem 2 is for full participation."""
    none = ask("groups", "--epochs", "5", "--noise", "4", "--rate", "0.5")
    assert (none["releases"], none["theorem_1"], none["costs"]) == (0, 0, 0)
    assert none["note"] == "Theorem 2 is for full participation: theorem_2 and theorem_2_plus ignore --rate"
    sampled, whole = (ask("groups", "--epochs", "41", "--noise", "4", "--rate", rate) for rate in ("0.5", "1"))
    assert sampled["theorem_2"] == whole["theorem_2"]
    assert sampled["costs"] < whole["costs"]


def test_objective_by_command():
    """The sum of pure costs by hand; composing them at delta > 0 is cheaper."""
    found = ask("objective", "--rounds", "80", "--rate", "10", "--curvature", "0.5", "--size", "224.2", "--u1", "1")
    each = (10 * math.sqrt(2) / 224.2 + 0.9 / (224.2 * 0.5)) / 0.99
    assert found["costs_pure"] == pytest.approx(80 * each)
    assert found["costs"] < found["costs_pure"] < found["epsilon"]
