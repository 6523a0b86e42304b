"""How often each is used: from the settings, against the binomial law, and nothing of the schedule itself."""

import math

import numpy as np
import pytest

import sightline
from sightline.apps.report import RunView
from sightline.apps.report import sections as clients
from tests.engine.conftest import TINY, changed


def content(tmp_path, changes, name="run"):
    plain = changed(TINY, changes | {"rounds": 12})
    run = sightline.run(sightline.config.parse(plain), out=tmp_path / name)
    return clients.load_content(RunView.read(run.directory)), run.report.read_text()


def test_a_balanced_run_shows_equal_load_beside_poisson_sampling(tmp_path):
    found, page = content(tmp_path, {"sampling.clients": {"scheme": "balanced", "uses": 3}})
    (told,) = found["loads"]
    (own, exact), (poisson, spread) = told["rows"]
    assert (own, poisson) == ("This run's schedule", "Poisson sampling at the same rate")
    assert exact == ("3", "0", "3", "3", "3")
    assert float(spread[1]) == pytest.approx(math.sqrt(12 * 0.25 * 0.75), rel=1e-2)
    assert "How often each is used" in page
    assert "exactly 3 times in 12 rounds" in page


def test_least_and_most_of_all_are_medians():
    """Against 4000 simulated cohorts of 60 clients: the median of the least and of the most used."""
    drawn = np.random.default_rng(0).binomial(40, 0.2, size=(4000, 60))
    assert clients.UseSpread(40, 0.2).figures(60)[3:] == (
        str(int(np.median(drawn.min(1)))),
        str(int(np.median(drawn.max(1)))),
    )


def test_examples_and_check_ins_and_poisson_sampling_have_their_own_words(tmp_path):
    samples = {"privacy.unit": "sample", "sampling": {"samples": {"scheme": "balanced", "uses": 5, "epochs": 2}}}
    (told,) = content(tmp_path, samples, "samples")[0]["loads"]
    assert told["who"] == "example"
    assert told["rows"][0][1][:2] == ("10", "0")
    (told,) = content(tmp_path, {"sampling.clients": {"scheme": "check_ins", "rate": 0.5}}, "check-ins")[0]["loads"]
    assert told["rows"][0][1][3:] == ("0", "1")
    (told,) = content(tmp_path, {}, "poisson")[0]["loads"]
    assert [name for name, _ in told["rows"]] == ["Poisson sampling"]


def test_a_run_of_everybody_says_nothing(tmp_path):
    assert content(tmp_path, {"sampling.clients": {"scheme": "full"}})[0] is None
