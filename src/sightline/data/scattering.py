"""Fixed features of images: a scattering transform (Bruna and Mallat 2013), 2 scales, 8 orientations, orders 0 to 2.

S_0 = x * phi, S_1 = |x * psi_a| * phi, S_2 = ||x * psi_a| * psi_b| * phi: Morlet wavelets psi of scale 2^j and angle
t pi / 8, a Gaussian phi of scale 2^J; each kept at every 2^J-th pixel. 1 + 16 + 64 = 81 channels for each channel.

The law of privacy: a feature is a function of its own example and of constants written here, of nothing else. Whoever
adds or removes an example changes one row, so every guarantee about examples, or about clients of examples, is the same
before and after, and the transform costs nothing. A mean or a deviation over examples would be a release: none is here.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

SCALES, ANGLES = 2, 8
STEP = 1 << SCALES
"""One feature stands for so many pixels in each direction."""
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
"""S_0; two scales of 8 angles; 8 angles of the finer scale, each followed by 8 of the coarser."""
WIDTH, PEAK, SLANT = 0.8, 0.75 * np.pi, 4 / ANGLES
"""Of the finest Morlet wavelet: standard deviation in pixels, frequency, and how much narrower it is along the wave."""

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]


def wrap_around(shape: tuple[int, int], turn: float, *, width: float, frequency: float, slant: float) -> Complex:
    """A Gaussian envelope times a plane wave along the angle `turn`, summed over periods of the grid `shape`."""
    rows, columns = (np.arange(-2 * size, 3 * size, dtype=np.float64) for size in shape)
    along = np.cos(turn) * rows[:, None] + np.sin(turn) * columns[None, :]
    across = np.cos(turn) * columns[None, :] - np.sin(turn) * rows[:, None]
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * np.pi * width**2)
    wave = envelope * np.exp(1j * frequency * along)
    return np.asarray(wave.reshape(5, shape[0], 5, shape[1]).sum(axis=(0, 2)), dtype=np.complex128)


def morlet_wavelet(shape: tuple[int, int], scale: int, angle: int) -> Complex:
    """psi: a wave under a Gaussian, less as much of the Gaussian as makes its sum zero."""
    turn, width = (ANGLES / 2 - 1 - angle) * np.pi / ANGLES, WIDTH * 2**scale
    wave = wrap_around(shape, turn, width=width, frequency=PEAK / 2**scale, slant=SLANT)
    bump = wrap_around(shape, turn, width=width, frequency=0.0, slant=SLANT)
    return np.asarray(wave - wave.sum() / bump.sum() * bump, dtype=np.complex128)


def smoothing_matrix(length: int, scale: int) -> Real:
    """Rows of phi, one for each kept feature: a Gaussian over a line that was kept at every 2^scale-th pixel.

    The line is padded by one `STEP` at both ends, for which no feature is kept.

    >>> smoothing_matrix(36, 0).shape, smoothing_matrix(18, 1).shape
    ((7, 36), (7, 18))
    """
    width = WIDTH * 2 ** (SCALES - 1 - scale)
    hop = STEP >> scale
    places = np.arange(-2 * length, 3 * length, dtype=np.float64)
    bump = np.exp(-(places**2) / (2 * width**2)).reshape(5, length).sum(axis=0)
    kept = range(1, length // hop - 1)
    return np.asarray(np.stack([np.roll(bump, hop * place) for place in kept]) / bump.sum(), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Filters:
    """Everything that images of one size need."""

    fine: NDArray[np.complex64]
    """Spectra of the wavelets of scale 1: (angles, height, width)."""
    coarse: NDArray[np.complex64]
    smooth: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    """By scale: the matrices of rows and of columns."""

    def smooth_images(self, images: NDArray[np.float32], scale: int) -> NDArray[np.float32]:
        """images * phi, at every 2^J-th pixel of the image."""
        rows, columns = self.smooth[scale]
        return np.asarray(rows @ images @ columns.T, dtype=np.float32)


@cache
def filters_of(height: int, width: int) -> Filters:
    """The filters of padded images of this size."""
    spectra = [
        np.stack([np.fft.fft2(morlet_wavelet((height, width), scale, angle)) for angle in range(ANGLES)])
        for scale in range(SCALES)
    ]
    lines = [
        tuple(smoothing_matrix(length >> scale, scale).astype(np.float32) for length in (height, width))
        for scale in range(SCALES)
    ]
    fine, coarse = (spectrum.astype(np.complex64) for spectrum in spectra)
    return Filters(fine, coarse, tuple((rows, columns) for rows, columns in lines))


def scatter_images(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, height, width) -> (n, 81, height / 4, width / 4); sides are multiples of 4, edges are mirrored.

    Guarantees: row i is a function of image i alone, the same in every batch up to rounding; moving an image by 4
    pixels moves its features by 1 away from the edges; wavelets and low pass together are a contraction
    (their squared spectra add up to at most 1).
    """
    import scipy.fft  # slow to load; most data need none of it

    padded = np.pad(images, ((0, 0), (STEP, STEP), (STEP, STEP)), mode="reflect").astype(np.float32, copy=False)
    filters = filters_of(padded.shape[1], padded.shape[2])
    spectrum = scipy.fft.fft2(padded)[:, None]
    fine = np.abs(scipy.fft.ifft2(spectrum * filters.fine))
    coarse = _coarse_moduli(spectrum, filters)
    parts = [
        filters.smooth_images(padded, 0)[:, None],
        filters.smooth_images(fine, 0),
        filters.smooth_images(coarse, 1),
    ]
    for angle in range(ANGLES):
        again = scipy.fft.fft2(fine[:, angle])[:, None]
        parts.append(filters.smooth_images(_coarse_moduli(again, filters), 1))
    return np.concatenate(parts, axis=1)


def _coarse_moduli(spectrum: NDArray[np.complex64], filters: Filters) -> NDArray[np.float32]:
    """|x * psi| of the coarser scale at every second pixel: who folds a spectrum thins out the signal."""
    import scipy.fft

    product = spectrum * filters.coarse
    height, width = product.shape[-2:]
    half = product[..., : height // 2, :] + product[..., height // 2 :, :]
    folded = (half[..., : width // 2] + half[..., width // 2 :]) * np.float32(0.25)
    return np.asarray(np.abs(scipy.fft.ifft2(folded)), dtype=np.float32)
