"""The golden table: never below the limit of fine grids, at most 0.1% above it, each row within a second."""

import tomllib
from pathlib import Path

import pytest

from sightline import accounting

ROWS = tomllib.loads((Path(__file__).parents[1] / "golden" / "accounting.toml").read_text())["row"]
ROUNDED = 6e-5
"""Half a unit in the fourth decimal, with room for the comparison itself."""


def scheme_of(row):
    return getattr(accounting, row["scheme"])(**row["arguments"])


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_golden_rows_hold(row):
    epsilon = scheme_of(row).epsilon(delta=row["delta"])
    assert row["epsilon"] - ROUNDED <= epsilon <= row["epsilon"] * 1.001


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_interval_holds_the_golden_value(row):
    lower, upper = scheme_of(row).interval(delta=row["delta"])
    assert lower - ROUNDED <= row["epsilon"] <= upper + ROUNDED
    assert upper - lower <= 2e-3 * upper


@pytest.mark.parametrize("row", [row for row in ROWS if "rdp" in row["others"]], ids=lambda row: row["name"])
def test_moments_reproduce_the_papers_style(row):
    epsilon = scheme_of(row).epsilon(delta=row["delta"], accountant=accounting.Accountant.RDP)
    assert epsilon == pytest.approx(row["others"]["rdp"], abs=1e-4)
    assert epsilon > scheme_of(row).epsilon(delta=row["delta"])


@pytest.mark.parametrize("row", [row for row in ROWS if "poisson_pld" in row["others"]], ids=lambda row: row["name"])
def test_poisson_at_the_same_expected_uses(row):
    given = row["arguments"]
    poisson = accounting.poisson(noise=given["noise"], rate=given["uses"] / given["steps"], steps=given["steps"])
    assert poisson.epsilon(delta=row["delta"]) == pytest.approx(row["others"]["poisson_pld"], rel=2e-4)
