"""Fixed image features instead of pixels: scattering, colours, mirror images, normalisation, whitening, caching."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data, Features
from sightline.console import ProgressBar
from sightline.data.federation import Kind, Partition, Scale, Table
from sightline.errors import invalid

# Whitening uses made-up "dead leaves" pictures (discs of random size). Statistics of the clients' own images would give
# about one point more accuracy, but they would be a release to noise, account and record.
SEED = 2001
LEAVES = 150
"""Discs per picture: at 28 and 32 pixels they leave about a tenth of the background visible, in larger ones more."""
SMALLEST = 2.0
"""Radius of the smallest disc, in half pixels; frequency falls with the cube of the radius."""
TINT = 0.15
"""How far the channels of a disc deviate from its brightness."""
FINE = 2
"""Pictures are drawn this many times finer and then averaged, for soft edges."""


def draw_pictures(count: int, channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return (count, channels, height, width) made-up pictures, the same in every process.

    >>> draw_pictures(2, 3, 8, 8).shape
    (2, 3, 8, 8)
    """
    draws = np.random.Generator(np.random.Philox(SEED))
    rows, columns = FINE * height, FINE * width
    down, along = np.arange(rows, dtype=np.float32)[:, None], np.arange(columns, dtype=np.float32)
    margin = 4 * SMALLEST
    canvas = np.zeros((count, channels, rows, columns), np.float32)
    for _ in range(LEAVES):
        radius = np.minimum(SMALLEST / np.sqrt(1 - draws.random(count)), max(rows, columns))
        middle = draws.random((2, count)) * (np.array([[rows], [columns]]) + 2 * margin) - margin
        colour = np.clip(draws.random((count, 1)) + TINT * draws.standard_normal((count, channels)), 0, 1)
        top, left, size = (part.astype(np.float32)[:, None, None] for part in (*middle, radius))
        inside = np.square(down - top) + np.square(along - left) < np.square(size)
        np.copyto(canvas, colour.astype(np.float32)[:, :, None, None], where=inside[:, None])
    soft = canvas.reshape(count, channels, height, FINE, width, FINE).mean(axis=(3, 5))
    return np.asarray(np.rint(255 * soft), dtype=np.uint8)


SCALES, ANGLES = 2, 8
STEP = 1 << SCALES
"""Pixels per feature in each direction."""
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
"""S_0; two scales of 8 angles; 8 angles of the finer scale, each followed by 8 of the coarser."""
WIDTH, PEAK, SLANT = 0.8, 0.75 * np.pi, 4 / ANGLES
"""The finest Morlet wavelet: standard deviation in pixels, frequency, and narrowing along the wave."""

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]


def wrap_around(shape: tuple[int, int], turn: float, *, width: float, frequency: float, slant: float) -> Complex:
    """Return a Gaussian envelope times a plane wave along the angle `turn`, summed over periods of the grid `shape`."""
    rows, columns = (np.arange(-2 * size, 3 * size, dtype=np.float64) for size in shape)
    along = np.cos(turn) * rows[:, None] + np.sin(turn) * columns[None, :]
    across = np.cos(turn) * columns[None, :] - np.sin(turn) * rows[:, None]
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * np.pi * width**2)
    wave = envelope * np.exp(1j * frequency * along)
    return np.asarray(wave.reshape(5, shape[0], 5, shape[1]).sum(axis=(0, 2)), dtype=np.complex128)


def morlet_wavelet(shape: tuple[int, int], scale: int, angle: int) -> Complex:
    """Return psi: a wave under a Gaussian, minus a multiple of the Gaussian so that its sum is zero."""
    turn, width = (ANGLES / 2 - 1 - angle) * np.pi / ANGLES, WIDTH * 2**scale
    wave = wrap_around(shape, turn, width=width, frequency=PEAK / 2**scale, slant=SLANT)
    bump = wrap_around(shape, turn, width=width, frequency=0.0, slant=SLANT)
    return np.asarray(wave - wave.sum() / bump.sum() * bump, dtype=np.complex128)


def smoothing_matrix(length: int, scale: int) -> Real:
    """Return rows of phi, one per kept feature: a Gaussian over a line sampled at every 2^scale-th pixel.

    The line is padded by one `STEP` at both ends, for which no feature is kept.

    >>> smoothing_matrix(36, 0).shape, smoothing_matrix(18, 1).shape
    ((7, 36), (7, 18))
    """
    width = WIDTH * 2 ** (SCALES - 1 - scale)
    hop = STEP >> scale
    places = np.arange(-2 * length, 3 * length, dtype=np.float64)
    bump = np.exp(-(places**2) / (2 * width**2)).reshape(5, length).sum(axis=0)
    kept = range(1, length // hop - 1)
    return np.asarray(np.stack([np.roll(bump, hop * index) for index in kept]) / bump.sum(), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Filters:
    """All filters for images of one size."""

    fine: NDArray[np.complex64]
    """Spectra of the wavelets of scale 1: (angles, height, width)."""
    coarse: NDArray[np.complex64]
    smooth: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    """By scale: the matrices of rows and of columns."""

    def smooth_images(self, images: NDArray[np.float32], scale: int) -> NDArray[np.float32]:
        """Return images * phi, at every 2^J-th pixel of the image."""
        rows, columns = self.smooth[scale]
        return np.asarray(rows @ images @ columns.T, dtype=np.float32)


@cache
def filters_of(height: int, width: int) -> Filters:
    """Return the filters of padded images of this size."""
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
    """Return (n, 81, height / 4, width / 4) for (n, height, width); sides are multiples of 4, edges are mirrored.

    Guarantees: row i is a function of image i alone, the same in every batch up to rounding. Moving an image by 4
    pixels moves its features by 1 away from the edges. Wavelets and low pass together are a contraction (their squared
    spectra add up to at most 1).
    """
    # Slow to import, and most data do not need it.
    import scipy.fft

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
    """Return |x * psi| of the coarser scale at every second pixel; folding the spectrum subsamples the signal."""
    import scipy.fft

    product = spectrum * filters.coarse
    height, width = product.shape[-2:]
    half = product[..., : height // 2, :] + product[..., height // 2 :, :]
    folded = (half[..., : width // 2] + half[..., width // 2 :]) * np.float32(0.25)
    return np.asarray(np.abs(scipy.fft.ifft2(folded)), dtype=np.float32)


BATCH = 128
"""Images processed at a time."""
VERSION = b"sightline scattering 1"
"""Version of these numbers and their storage; changing either changes the file names, so old caches are not read."""
RECIPE = b"features 1"
"""Version of everything that determines features, whitening and made-up pictures included."""
TINY = 1e-5
"""Added to a variance before dividing by its root."""
OPPONENT = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
"""Brightness, blue minus brightness, red minus brightness: the colours of JPEG (ITU-R BT.601)."""
PICTURES = 500
"""Number of made-up pictures for whitening."""
RIDGE = 0.3
"""Added to every variance before dividing by its root: directions that pictures hardly have are not amplified."""


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Group normalisation inside an example (mean 0, variance 1 per group of channels), then a fixed mixing.

    Guarantees: an example's statistics are its own. No other example enters, so it costs no privacy.
    """

    groups: int | None
    mixing: NDArray[np.float32] | None = None
    """(channels, channels), at every position."""

    def apply(self, raw: NDArray[np.float16], out: NDArray[np.float32]) -> None:
        """Write the normalised features of each example into `out`."""
        out[...] = raw
        if self.groups is not None:
            # Statistics over axis 2 only: a mean over examples would let one example change the inputs of all others.
            grouped = out.reshape(len(out), self.groups, -1)
            grouped -= grouped.mean(axis=2, keepdims=True)
            grouped /= np.sqrt(np.square(grouped).mean(axis=2, keepdims=True) + TINY)
        if self.mixing is not None:
            out[...] = (self.mixing @ out.reshape(*out.shape[:2], -1)).reshape(out.shape)


@cache
def whitening_matrix(wanted: Features, channels: int, height: int, width: int) -> NDArray[np.float32]:
    """Return (second moments of normalised features of made-up pictures + RIDGE)^(-1/2), symmetric, hence unique."""
    pictures = draw_pictures(PICTURES, channels, height, width)
    raw = cached_features(pictures, 255.0, wanted, "scattering of made-up pictures")
    features = np.empty(raw.shape, np.float32)
    Normalisation(wanted.groups).apply(raw, features)
    places = features.astype(np.float64).transpose(1, 0, 2, 3).reshape(raw.shape[1], -1)
    moments, directions = np.linalg.eigh(places @ places.T / places.shape[1])
    return np.asarray(directions / np.sqrt(moments + RIDGE) @ directions.T, dtype=np.float32)


def transform_table(table: Table, settings: Data) -> Table:
    """Return the table with features instead of pixels if the settings ask for them, cached if possible."""
    wanted = settings.features
    if not isinstance(wanted, Features):
        return table
    _check_images(table, settings, wanted)
    channels, height, width = table.x.shape[1:]
    mixing = whitening_matrix(wanted, channels, height, width) if wanted.whiten else None
    scale = Normalisation(wanted.groups, mixing)
    test = None if table.test is None else _features_of(table.test, wanted, settings.source, scale)
    made = _features_of(table, wanted, settings.source, scale)
    return replace(made, test=test, notes=(*table.notes, describe_features(wanted, settings.source)))


def describe_features(wanted: Features, source: str) -> str:
    """Return what replaces the pixels, as text for the report.

    >>> describe_features(Features(mirror=True), "mnist")
    'mnist: 81 scattering features a channel and 4 x 4 pixels, of each example alone, with its mirror image'
    """
    parts = [f"{source}: {CHANNELS} scattering features a channel and 4 x 4 pixels, of each example alone"]
    parts += ["brightness and two differences of colour"] if wanted.opponent else []
    parts += ["with its mirror image"] if wanted.mirror else []
    parts += [] if wanted.groups is None else [f"normalised in {wanted.groups} groups of channels inside the example"]
    parts += ["whitened by made-up pictures"] if wanted.whiten else []
    return ", ".join(parts)


def _features_of(table: Table, wanted: Features, source: str, scale: Normalisation) -> Table:
    highest = table.scale.highest if isinstance(table.scale, Scale) else 1.0
    return replace(table, x=cached_features(table.x, highest, wanted, f"scattering of {source}"), scale=scale)


def _check_images(table: Table, settings: Data, wanted: Features) -> None:
    if table.kind is not Kind.IMAGE:
        reason = f"scattering only applies to images, and {settings.source} has none"
        invalid("data.features", wanted.transform, reason, "remove it, or use another source")
    if any(side % STEP or side <= STEP for side in table.x.shape[2:]):
        reason = f"sides of {' x '.join(map(str, table.x.shape[2:]))} pixels are not multiples of {STEP} beyond {STEP}"
        invalid("data.features", wanted.transform, reason, "remove it")
    if Partition(settings.partition) is Partition.ROTATION:
        reason = "scattering features cannot be rotated"
        invalid("data.partition", "rotation", reason, "remove data.features")
    if wanted.opponent and table.x.shape[1] != len(OPPONENT):
        reason = f"differences of colour need red, green and blue, and {settings.source} has {table.x.shape[1]} channel"
        invalid("data.features.opponent", "true", reason, "remove it")
    channels = CHANNELS * table.x.shape[1]
    if wanted.groups is not None and channels % wanted.groups:
        reason = f"{channels} channels cannot be divided into groups of equal size"
        invalid("data.features.groups", wanted.groups, reason, "use 27, or another divisor")


def cached_features(pixels: NDArray[np.generic], highest: float, wanted: Features, title: str) -> NDArray[np.float16]:
    """Return the features of (n, channels, height, width) images, computed once per data set and cached on disk.

    Guarantees: a file is named by a digest of the pixels, the wanted features and `VERSION`. It is complete or absent.
    Only its owner can read it, because features of private images are private. If the disk cannot be written, the
    features stay in memory.
    """
    digest = hashlib.blake2b(VERSION + repr((pixels.shape, pixels.dtype.str, highest)).encode(), digest_size=20)
    digest.update(b" opponent" * wanted.opponent + b" mirror" * wanted.mirror)
    digest.update(np.ascontiguousarray(pixels).data)
    path = cache_folder() / f"scattering-{digest.hexdigest()}.npy"
    shape = feature_shape(pixels, wanted)
    result = _read_features(path)
    if result is not None and result.shape == shape and result.dtype == np.float16:
        return result
    return _write_features(path, pixels, highest, wanted, title)


def _read_features(path: Path) -> NDArray[np.float16] | None:
    """Load cached features; return None if the file is missing or corrupt (the caller recomputes and overwrites it)."""
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError, EOFError):
        return None


def cache_folder() -> Path:
    """Return the cache folder: `sightline/` in the user's cache; an unusable path for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"
    # No HOME, and a uid without a name.
    except RuntimeError:
        # No file can be created there, so callers fall back to memory.
        return Path(os.devnull, "sightline")


def feature_shape(pixels: NDArray[np.generic], wanted: Features) -> tuple[int, int, int, int]:
    """Return the shape of the features of (n, channels, height, width) images; `mirror` keeps the left half."""
    examples, channels, height, width = pixels.shape
    # Averaged with those of the mirror image, the right half holds the numbers of the left, with angles swapped.
    columns = width // STEP
    return examples, channels * CHANNELS, height // STEP, (columns + 1) // 2 if wanted.mirror else columns


def _write_features(
    path: Path, pixels: NDArray[np.generic], highest: float, wanted: Features, title: str
) -> NDArray[np.float16]:
    features = _show_progress(pixels, highest, wanted, title)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # NamedTemporaryFile creates files that only the owner can read.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                # Write, sync, then rename: other processes see the whole file or none.
                np.save(file, features, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    # A full or read-only disk; the features are still returned.
    except OSError:
        return features
    return features


def _show_progress(pixels: NDArray[np.generic], highest: float, wanted: Features, title: str) -> NDArray[np.float16]:
    """Return the features, with a progress bar on a terminal."""
    with ProgressBar(title, len(pixels)) as bar:
        return compute_features(pixels, highest, wanted, lambda done: bar.show(done, len(pixels), "images"))


def compute_features(
    pixels: NDArray[np.generic], highest: float, wanted: Features, advance: Callable[[int], None] = lambda done: None
) -> NDArray[np.float16]:
    """Return the scattering of every channel of (pixel / highest), in half precision: 11 bits per feature."""
    out = np.empty(feature_shape(pixels, wanted), dtype=np.float16)
    for start in range(0, len(pixels), BATCH):
        some = pixels[start : start + BATCH].astype(np.float32) / np.float32(highest)
        if wanted.opponent:
            some = np.einsum("oc,nchw->nohw", np.array(OPPONENT, np.float32), some)
        result = _scatter_channels(some)
        if wanted.mirror:
            result = (result + _scatter_channels(some[..., ::-1])) / np.float32(2)
        out[start : start + BATCH] = result[..., : out.shape[3]]
        advance(start + len(some))
    return out


def _scatter_channels(images: NDArray[np.float32]) -> NDArray[np.float32]:
    examples, channels, height, width = images.shape
    result = scatter_images(images.reshape(-1, height, width))
    return result.reshape(examples, channels * CHANNELS, *result.shape[2:])
