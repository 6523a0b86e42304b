"""Scattering against sums in space, against what kymatio computes, and its laws."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sightline.data.features import CHANNELS, filters_of, scatter_images, wrap_around


def filtered(x: NDArray[Any], weight: Any, keep: int) -> NDArray[Any]:
    """sum_n x(n) f(m - n) over an image that repeats itself, f given far beyond the image, at every `keep`-th m."""
    height, width = x.shape
    out = np.zeros((height // keep, width // keep), dtype=complex)
    rows, columns = np.mgrid[-2 * height : 3 * height, -2 * width : 3 * width]
    repeated = np.tile(x, (5, 5))
    for m in range(out.shape[0]):
        for n in range(out.shape[1]):
            out[m, n] = (repeated * weight(keep * m - rows, keep * n - columns)).sum()
    return out


def wavelet(scale: int, angle: int) -> Any:
    """The Morlet wavelet of the literature as a function of the place; sums over a lattice stand for its integrals."""
    width, frequency, turn = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, (3 - angle) * np.pi / 8

    def parts(r: NDArray[Any], c: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        u, v = r * np.cos(turn) + c * np.sin(turn), -r * np.sin(turn) + c * np.cos(turn)
        bump = np.exp(-(u**2 + v**2 / 4) / (2 * width**2)) / (4 * np.pi * width**2)
        return bump * np.exp(1j * frequency * u), bump

    wave, bump = (part.sum() for part in parts(*np.mgrid[-60:61, -60:61]))
    return lambda r, c: (lambda both: both[0] - wave / bump * both[1])(parts(r, c))


def gaussian(width: float) -> Any:
    total = np.exp(-(np.arange(-80, 81) ** 2) / (2 * width**2)).sum() ** 2
    return lambda r, c: np.exp(-(r**2 + c**2) / (2 * width**2)) / total


def test_features_are_what_sums_in_space_say() -> None:
    image = np.random.default_rng(5).random((8, 8))
    padded = np.pad(image, 4, mode="reflect")
    found = scatter_images(image[None].astype(np.float32))[0]
    inside = (slice(1, 3), slice(1, 3))
    assert found.shape == (CHANNELS, 2, 2)
    np.testing.assert_allclose(found[0], filtered(padded, gaussian(1.6), 4).real[inside], atol=2e-6)
    for first in (0, 3):
        fine, coarse = (abs(filtered(padded, wavelet(scale, first), 1 + scale)) for scale in (0, 1))
        np.testing.assert_allclose(found[1 + first], filtered(fine, gaussian(1.6), 4).real[inside], atol=2e-6)
        np.testing.assert_allclose(found[9 + first], filtered(coarse, gaussian(0.8), 2).real[inside], atol=2e-6)
        second = abs(filtered(fine, wavelet(1, 6), 2))
        there = found[17 + 8 * first + 6]
        np.testing.assert_allclose(there, filtered(second, gaussian(0.8), 2).real[inside], atol=2e-6)


KYMATIO = {
    0: (0.501755, 0.489905, 0.500234),
    1: (0.033062, 0.001461, 0.010049),
    5: (0.029235, 0.003795, 0.009639),
    9: (0.020368, 0.002757, 0.007138),
    12: (0.080659, 0.006801, 0.027077),
    17: (0.001385, 0.000194, 0.000760),
    40: (0.003687, 0.000854, 0.001882),
    80: (0.000420, 0.000162, 0.000278),
}
"""kymatio 0.3.0, Scattering2D(J=2, shape=(28, 28)), of the image below: channel -> (at (3, 3), at (0, 6), mean)."""


def test_features_are_those_of_kymatio() -> None:
    """To 0.2 %: kymatio cuts spectra where we fold them, and takes 3.1415 for pi."""
    r, c = np.mgrid[0:28, 0:28]
    image = 0.5 + 0.5 * np.sin(0.9 * r + 0.4 * c) * np.exp(-((r - 12) ** 2 + (c - 15) ** 2) / 60)
    found = scatter_images(image[None].astype(np.float32))[0]
    for channel, expected in KYMATIO.items():
        values = (found[channel, 3, 3], found[channel, 0, 6], found[channel].mean())
        np.testing.assert_allclose(values, expected, rtol=2e-3, atol=1e-6)


def test_moving_an_image_by_four_pixels_moves_its_features_by_one() -> None:
    image = np.zeros((1, 48, 48), np.float32)
    image[0, 16:28, 20:30] = np.random.default_rng(0).random((12, 10))
    here, there = scatter_images(image), scatter_images(np.roll(image, (4, -4), (1, 2)))
    np.testing.assert_allclose(np.roll(here, (1, -1), (2, 3)), there, atol=2e-6)
    assert abs(np.roll(here, (1, 0), (2, 3)) - there).max() > 0.01


@pytest.mark.parametrize("side", [16, 36, 40])
def test_wavelets_and_low_pass_are_a_contraction(side: int) -> None:
    filters = filters_of(side, side)
    low = wrap_around((side, side), 0.0, width=1.6, frequency=0.0, slant=1.0).real
    band = sum((abs(spectra.astype(complex)) ** 2).sum(0) for spectra in (filters.fine, filters.coarse))
    mirrored = np.roll(band[::-1, ::-1], (1, 1), (0, 1))  # of a real image both halves of the spectrum are one
    energy = abs(np.fft.fft2(low / low.sum())) ** 2 + (band + mirrored) / 2
    assert energy.max() <= 1 + 1e-6
    assert energy[: side // 4, : side // 4].min() > 0.1  # and little is lost


def test_an_example_has_the_features_that_it_has_alone() -> None:
    images = np.random.default_rng(1).random((5, 12, 8)).astype(np.float32)
    together = scatter_images(images)
    for number in range(5):
        np.testing.assert_allclose(scatter_images(images[number : number + 1])[0], together[number], atol=1e-6)
    changed = images.copy()
    changed[2] = 0.0
    np.testing.assert_array_equal(np.delete(scatter_images(changed), 2, 0), np.delete(together, 2, 0))


def test_a_constant_image_has_no_detail() -> None:
    found = scatter_images(np.full((1, 28, 28), 0.75, np.float32))[0]
    np.testing.assert_allclose(found[0], 0.75, atol=1e-6)
    np.testing.assert_allclose(found[1:], 0.0, atol=1e-6)
