"""Numbers on the page: an upper bound is never printed smaller than it is."""

import doctest
import importlib
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline.apps.report
from sightline.apps.report.headline import power_at_most
from sightline.apps.report.numbers import format_duration, format_number, format_upper
from sightline.apps.report.settings import setting_text

MODULES = [f"sightline.apps.report.{module.name}" for module in pkgutil.iter_modules(sightline.apps.report.__path__)]


@given(st.floats(1e-12, 1e12))
def test_an_upper_bound_is_rounded_up_and_stays_near(value: float) -> None:
    printed = float(format_upper(value).replace(",", ""))
    assert value <= printed <= value * 1.011 + 1e-300


@given(st.floats(-1e12, 1e12))
def test_a_measured_number_is_printed_to_three_digits(value: float) -> None:
    assert float(format_number(value).replace(",", "")) == pytest.approx(value, rel=6e-3)


def test_what_is_not_a_number_is_not_printed_as_one() -> None:
    assert [format_upper(None), format_upper(float("inf")), format_upper(0.0)] == ["∞", "∞", "0"]
    assert [format_number(None), format_number(float("nan")), format_duration(None)] == ["–", "–", "–"]
    assert setting_text(True) == "yes"


@given(st.floats(0, 50), st.floats(0, 0.5), st.floats(0, 1))
def test_the_power_of_a_test_is_bounded_by_the_definition(epsilon: float, delta: float, alarms: float) -> None:
    power = power_at_most(epsilon, delta, alarms)
    assert power <= 1
    assert power >= min(1.0, alarms) - 1e-12  # a blind guess is always possible
    assert power <= 2.718281828459045**epsilon * alarms + delta + 1e-9


def test_known_powers() -> None:
    assert power_at_most(0.0, 0.0) == pytest.approx(0.05)
    assert power_at_most(1.0, 0.0) == pytest.approx(0.05 * 2.718281828, rel=1e-6)
    assert power_at_most(8.0, 0.0) == pytest.approx(1 - 0.95 * 0.000335462628, rel=1e-9)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
