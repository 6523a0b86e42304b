"""The partitioning paper's own numbers, as it computes them; and what our accountant needs instead."""

import pytest

from sightline import accounting
from sightline.accounting import published

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
    assert found.value == pytest.approx(printed, abs=6e-4)
    assert "not a guarantee" in found.notice


@pytest.mark.parametrize(("parts", "printed"), [(1, 6.618e-4), (3, 5.440e-4), (8, 4.99e-4)])
def test_noise_of_table_1(parts, printed):
    found = published.calibrate_published(
        lambda z: published.split_moments(z, parts, 0.1, 1000, unsplit_noise=z), **TARGET
    )
    assert found.value / BATCH == pytest.approx(printed, abs=4e-7)


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
