"""Features: colours, mirror images, normalisation and whitening, each example alone; the cache; what is refused."""

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sightline.config import Data, Features, parse, read, to_toml
from sightline.data import Kind, load_federation
from sightline.data import features as module
from sightline.data.features import (
    Normalisation,
    cached_features,
    compute_features,
    draw_pictures,
    scatter_images,
    transform_table,
    whitening_matrix,
)
from sightline.data.federation import Scale, Table
from sightline.errors import InvalidInput
from sightline.randomness import Streams

WORD = Features(transform="scattering")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sightline"


def test_groups_are_normalised_inside_the_example() -> None:
    raw = np.random.default_rng(2).normal(2, 3, (4, 81, 2, 2)).astype(np.float16)
    out = np.empty(raw.shape, np.float32)
    Normalisation(27).apply(raw, out)
    expected = torch.nn.functional.group_norm(torch.from_numpy(raw.astype(np.float32)), 27)
    np.testing.assert_allclose(out, expected.numpy(), atol=1e-5)
    Normalisation(None).apply(raw, out)
    np.testing.assert_array_equal(out, raw.astype(np.float32))


def digits(**given: Any) -> Any:
    data = Data(source="digits", clients=3, **given)
    return load_federation(data, streams=Streams.from_seed(1))


def test_a_federation_of_features_has_the_examples_of_the_pixels(own_cache: Path) -> None:
    plain, made = digits(), digits(features=WORD)
    assert made.input_shape == (81, 2, 2)
    assert len(list(own_cache.iterdir())) == 1
    assert any("each example alone" in note for note in made.notes)
    for before, after in zip(plain.clients, made.clients, strict=True):
        np.testing.assert_array_equal(before.train.y, after.train.y)
        expected = scatter_images(before.train.x[:4, 0])
        np.testing.assert_allclose(after.train.x[:4], expected, atol=5e-4)


def test_features_are_computed_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (6, 2, 8, 8)).astype(np.uint8)
    first = cached_features(pixels, 255.0, WORD, "test")
    file = next(own_cache.iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    calls: list[int] = []
    monkeypatch.setattr(
        module, "compute_features", lambda *given: calls.append(1) or compute_features(*given)
    )  # counts, and computes
    np.testing.assert_array_equal(cached_features(pixels, 255.0, WORD, "test"), first)
    assert not calls
    other = pixels.copy()
    other[0, 0, 0, 0] ^= 1
    assert not np.array_equal(cached_features(other, 255.0, WORD, "test"), first)
    assert len(calls) == 1
    whole = file.read_bytes()
    file.unlink()
    np.save(file, np.zeros(3, np.float16))  # of another make
    np.testing.assert_array_equal(cached_features(pixels, 255.0, WORD, "test"), first)
    assert len(calls) == 2
    for harmed in (b"", whole[: len(whole) // 2], b"PK\x03\x04" + whole, b"not an array"):
        file.unlink()
        file.write_bytes(harmed)
        np.testing.assert_array_equal(cached_features(pixels, 255.0, WORD, "test"), first)
        assert file.read_bytes() == whole


def test_without_a_place_to_write_features_stay_in_memory(own_cache: Path) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("a file where the folder should be")
    pixels = np.zeros((2, 1, 8, 8), np.uint8)
    assert cached_features(pixels, 255.0, WORD, "test").shape == (2, 81, 2, 2)


def photos(count: int, channels: int = 3) -> NDArray[Any]:
    return np.random.default_rng(4).integers(0, 256, (count, channels, 8, 16)).astype(np.uint8)


def test_an_image_and_its_mirror_image_have_the_same_features() -> None:
    wanted = Features(mirror=True)
    here, there = (compute_features(x, 255.0, wanted) for x in (photos(3), photos(3)[..., ::-1]))
    assert here.shape == (3, 243, 2, 2)
    np.testing.assert_array_equal(here, there)
    both = (compute_features(x, 255.0, WORD).astype(float) for x in (photos(3), photos(3)[..., ::-1]))
    np.testing.assert_allclose(here, sum(both)[..., :2] / 2, atol=1e-3)


def test_of_an_odd_number_of_columns_the_middle_one_is_kept() -> None:
    assert compute_features(photos(1)[..., :12], 255.0, Features(mirror=True)).shape == (1, 243, 2, 2)


def test_brightness_and_differences_of_colour_are_those_of_jpeg() -> None:
    from PIL import Image

    grey = np.full((1, 3, 8, 8), 0.25, np.float32)
    red = grey.copy()
    red[:, 0] = 0.75
    found = compute_features(np.concatenate([grey, red]), 1.0, Features(opponent=True))[:, ::81].astype(float)
    for number, image in enumerate((grey, red)):
        bytes_ = np.rint(255 * image[0].transpose(1, 2, 0)).astype(np.uint8)
        expected = np.asarray(Image.fromarray(bytes_).convert("YCbCr"), float)[0, 0] / 255 - (0, 128 / 255, 128 / 255)
        np.testing.assert_allclose(found[number, :, 0, 0], expected, atol=4e-3)


PIXELS = [81, 211, 58, 74, 30, 255]
"""Of the first channel, seen once; a byte more or less where a processor rounds otherwise."""


def test_made_up_pictures_are_the_same_for_everybody() -> None:
    first = draw_pictures(6, 3, 8, 12)
    np.testing.assert_array_equal(first, draw_pictures(6, 3, 8, 12))
    assert len({picture.tobytes() for picture in first}) == 6
    np.testing.assert_allclose(first[:, 0, 4, 6], PIXELS, atol=1)
    assert first.std() > 30


WHITE = Features(groups=27, whiten=True)


def test_made_up_pictures_are_white_but_for_the_ridge() -> None:
    """M (M_2 + ridge) M = 1: checked by multiplication, not by the decomposition that made it."""
    mixing = whitening_matrix(WHITE, 1, 8, 8).astype(float)
    raw = compute_features(draw_pictures(module.PICTURES, 1, 8, 8), 255.0, WHITE)
    features = torch.nn.functional.group_norm(torch.from_numpy(raw.astype(np.float32)), 27).double()
    moments = torch.einsum("nchw,ndhw->cd", features, features).numpy() / (len(raw) * 4)
    np.testing.assert_allclose(mixing, mixing.T, atol=1e-6)
    np.testing.assert_allclose(mixing @ (moments + 0.3 * np.eye(81)) @ mixing, np.eye(81), atol=1e-3)


KINDS = [WORD, WHITE, Features(groups=9, mirror=True), Features(groups=81, whiten=True, mirror=True, opponent=True)]


@pytest.mark.parametrize("wanted", KINDS, ids=lambda wanted: f"{wanted.groups}-{wanted.whiten}-{wanted.mirror}")
def test_no_example_enters_the_features_of_another(wanted: Features) -> None:
    """The whole way to the inputs of a model: with one example changed, all others are the same to the bit."""
    before = photos(140)  # more than one batch
    after = before.copy()
    after[7] = 255 - after[7]
    here, there = inputs_of(before, wanted), inputs_of(after, wanted)
    assert (here == there).reshape(140, -1).all(1).tolist() == [number != 7 for number in range(140)]
    np.testing.assert_allclose(inputs_of(np.delete(before, 7, 0), wanted), np.delete(here, 7, 0), atol=5e-3)
    np.testing.assert_allclose(inputs_of(before[7:8], wanted), here[7:8], atol=5e-3)


def inputs_of(pixels: NDArray[Any], wanted: Features) -> NDArray[Any]:
    y = np.zeros(len(pixels), np.int64)
    table = Table(x=pixels, y=y, classes=2, kind=Kind.IMAGE, scale=Scale(highest=255))
    made = transform_table(table, Data(source="cifar10", features=wanted))
    return np.asarray(made.shard(np.arange(len(pixels))).x)


REFUSED = [
    ({"features": WORD, "partition": "rotation", "clusters": (1, 2)}, "data.partition=rotation"),
    ({"features": Features(groups=7)}, "data.features.groups=7"),
    ({"features": Features(opponent=True)}, "data.features.opponent=true"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda part: str(part)[:20])
def test_what_features_cannot_be_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        digits(**given)


FILES = [
    ({"source": "mine:function", "features": "scattering"}, "data.features=scattering"),
    ({"source": "synthetic", "features": "scattering"}, "data.features=scattering"),
    ({"features": "wavelets"}, "data.features=wavelets"),
    ({"features": {"group": 3}}, "data.features.group=3.*groups"),
    ({"features": {"groups": 0}}, "data.features.groups=0"),
    ({"features": {"mirror": 1}}, "data.features.mirror=1"),
    ({"features": {"whiten": True}}, "data.features.whiten=true.*groups"),
    ({"features": 0}, "data.features=0"),
    ({"features": True}, "data.features=True"),
]


@pytest.mark.parametrize(("data", "said"), FILES, ids=lambda part: str(part)[:20])
def test_mistakes_in_a_file_are_one_line(data: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read({"rounds": 1, "data": data})


def test_features_are_read_as_they_were_written() -> None:
    import tomllib

    for word in ('"scattering"', "{groups = 27, whiten = true, mirror = true}", "30"):
        found = read({"rounds": 1}, [f"data.features={word}"])
        assert parse(tomllib.loads(to_toml(found))) == found
    assert read({"rounds": 1}, ['data.features="scattering"']).data.features == WORD


def test_views_are_of_images() -> None:
    privacy = {"unit": "sample", "noise_multiplier": 1.0}
    with pytest.raises(InvalidInput, match=r"local\.augment"):
        read({"rounds": 1, "data": {"features": "scattering"}, "local": {"augment": {}}, "privacy": privacy})
