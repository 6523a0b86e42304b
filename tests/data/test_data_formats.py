"""Every file format: what is written is what is read, and a hostile file is one line."""

import contextlib
import gzip
import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import idx_bytes, write_csv, write_gz, write_webp
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.formats import Field, read_csv, read_gzip, read_idx, read_npz, read_webp_grid
from sightline.errors import InvalidInput

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)


def test_idx_gives_back_what_was_written(tmp_path: Path) -> None:
    path = write_gz(tmp_path / "images.gz", idx_bytes(IMAGES))
    np.testing.assert_array_equal(read_idx(path, item=(28, 28)), IMAGES)
    labels = np.array([0, 255, 7], dtype=np.uint8)
    np.testing.assert_array_equal(read_idx(write_gz(tmp_path / "labels.gz", idx_bytes(labels)), item=()), labels)


@pytest.mark.parametrize(
    ("content", "law"),
    [
        (b"", "magic number missing"),
        (b"\x00\x00\x08", "magic number 000008"),
        (idx_bytes(IMAGES, magic=b"\x00\x00\x0d\x03"), "expected 00000803"),
        (idx_bytes(IMAGES[:, 0]), "expected 00000803"),
        (bytes((0, 0, 8, 3)) + b"\x00\x00", "the header is incomplete"),
        (idx_bytes(IMAGES)[:-1], "states 2,352 bytes, the file has 2,351"),
        (idx_bytes(IMAGES) + b"\x00", "has more than"),
        (idx_bytes(IMAGES, sizes=(3, 56, 14)), r"shape \(56, 14\)"),
        (idx_bytes(IMAGES, sizes=(2**32 - 1, 28, 28)), "4,294,967,295 items"),
        (idx_bytes(IMAGES, sizes=(0, 28, 28)), "0 items"),
        (idx_bytes(IMAGES, sizes=(1_000_000, 28, 28)), "states 784,000,000 bytes, the file has 2,352"),
    ],
)
def test_idx_refuses_a_file_that_is_not_one(tmp_path: Path, content: bytes, law: str) -> None:
    path = write_gz(tmp_path / "mnist" / "images.gz", content)
    with pytest.raises(InvalidInput, match=law) as caught:
        read_idx(path, item=(28, 28))
    assert str(caught.value).startswith("file=mnist/images.gz: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "flip", "plain", "folder"])
def test_a_damaged_gzip_is_one_line(tmp_path: Path, damage: str) -> None:
    path = write_gz(tmp_path / "images.gz", idx_bytes(IMAGES))
    packed = bytearray(path.read_bytes())
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        packed[-6] ^= 0xFF  # inside the stored checksum
        path.write_bytes({"cut": packed[:40], "flip": packed, "plain": idx_bytes(IMAGES)}[damage])
    with pytest.raises(InvalidInput, match=r"images\.gz: .*(is incomplete|cannot be unpacked)"):
        read_idx(path, item=(28, 28))


def test_a_gzip_bomb_is_never_unpacked(tmp_path: Path) -> None:
    """64 MiB of zeros behind an honest little header: at most a buffer's worth is ever in memory."""
    path = write_gz(tmp_path / "bomb.gz", idx_bytes(IMAGES) + bytes(2**26))
    tracemalloc.start()
    with pytest.raises(InvalidInput, match="has more than"):
        read_idx(path, item=(28, 28))
    with pytest.raises(InvalidInput, match="unpacks to more than 1,000 bytes"):
        read_gzip(path, most=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_a_lying_header_allocates_nothing(tmp_path: Path) -> None:
    path = write_gz(tmp_path / "liar.gz", idx_bytes(IMAGES, sizes=(1_000_000, 28, 28)))
    tracemalloc.start()
    with pytest.raises(InvalidInput):
        read_idx(path, item=(28, 28))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_bytes_get_past_the_idx_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever the bytes, the answer is an array of the promised shape or one InvalidInput."""
    folder = tmp_path_factory.mktemp("fuzz")
    for packed in (content, gzip.compress(content), gzip.compress(bytes((0, 0, 8, 1)) + content)):
        (folder / "f.gz").write_bytes(packed)
        with contextlib.suppress(InvalidInput):
            assert read_idx(folder / "f.gz", item=()).ndim == 1


FIELDS = {"images": Field("uint8", (None, 2)), "labels": Field("uint8", (None,))}


def test_npz_gives_back_what_was_written(tmp_path: Path) -> None:
    images, labels = np.arange(6, dtype=np.uint8).reshape(3, 2), np.arange(3, dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=labels, more=np.zeros(3))
    arrays = read_npz(tmp_path / "a.npz", FIELDS)
    assert sorted(arrays) == ["images", "labels"]
    np.testing.assert_array_equal(arrays["images"], images)
    np.testing.assert_array_equal(arrays["labels"], labels)


@pytest.mark.parametrize(
    ("labels", "law"),
    [
        (np.arange(3, dtype=np.float32), "float32"),
        (np.zeros((3, 1), dtype=np.uint8), r"\(3, 1\)"),
        (np.array([print, None, {}], dtype=object), "object"),
    ],
)
def test_npz_refuses_foreign_arrays_and_pickles(tmp_path: Path, labels: np.ndarray, law: str) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 2), dtype=np.uint8), labels=labels)
    with pytest.raises(InvalidInput, match=f'array "labels" is .*{law}'):
        read_npz(tmp_path / "a.npz", FIELDS)


def member(shape: tuple[int, ...], content: bytes) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


@pytest.mark.parametrize(
    ("content", "law"),
    [
        (member((4,), b"abc"), "not of the 4 bytes"),
        (member((2,), b"abc"), "not of the 2 bytes"),
        (member((2**40,), b"abc"), "claims 1,099,511,627,776 bytes"),
        (b"\x93NUMPY\x01\x00\xff", "no valid .npy header"),
        (b"nonsense", "no valid .npy header"),
    ],
)
def test_npz_refuses_lying_members(tmp_path: Path, content: bytes, law: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", content)
    with pytest.raises(InvalidInput, match=law):
        read_npz(tmp_path / "a.npz", {"labels": FIELDS["labels"]})


def test_npz_refuses_what_is_no_archive_or_lacks_an_array(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    with pytest.raises(InvalidInput, match=r"not a readable \.npz archive"):
        read_npz(tmp_path / "a.npz", FIELDS)
    np.savez(tmp_path / "b.npz", images=np.zeros((3, 2), dtype=np.uint8))
    with pytest.raises(InvalidInput, match='no array "labels"'):
        read_npz(tmp_path / "b.npz", FIELDS)


def test_a_webp_grid_is_cut_row_by_row(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 3, 4, 4), dtype=np.uint8)
    rows = [np.concatenate([images[3 * r + c].transpose(1, 2, 0) for c in range(3)], axis=1) for r in range(3)]
    path = write_webp(tmp_path / "grid.webp", np.concatenate(rows))
    np.testing.assert_array_equal(read_webp_grid(path, side=4, per_row=3), images)


def test_webp_of_the_wrong_size_kind_or_cut_is_refused(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    path = write_webp(tmp_path / "grid.webp", pixels)
    with pytest.raises(InvalidInput, match="a 12 x 12 RGB picture, expected one of 16 x 16 RGB"):
        read_webp_grid(path, side=4, per_row=4)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InvalidInput, match="not a readable WebP"):
        read_webp_grid(path, side=4, per_row=3)
    path.write_bytes(b"GIF89a not a picture")
    with pytest.raises(InvalidInput, match="not a readable WebP"):
        read_webp_grid(path, side=4, per_row=3)


def test_csv_gives_the_named_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv.gz", ("user", "more", "text"), [(1, "x", 'a, "b"\nc'), (2, "y", "é")])
    assert read_csv(path, ("text", "user")) == [('a, "b"\nc', "1"), ("é", "2")]


@pytest.mark.parametrize(
    ("content", "law"),
    [
        (b"", 'no column "text"'),
        (b"user,label\n1,2\n", 'no column "text"'),
        (b"user,text\n1,a\n2\n", "line 3 has 1 fields, the header 2"),
        (b"user,text\n1,\xff\xfe\n", "not UTF-8"),
        (b'user,text\n1,"open\n', "not a CSV table"),
        (b"user,text\n1," + b"a" * 200_000 + b"\n", "not a CSV table"),
    ],
)
def test_csv_refuses_broken_tables(tmp_path: Path, content: bytes, law: str) -> None:
    with pytest.raises(InvalidInput, match=law):
        read_csv(write_gz(tmp_path / "t.csv.gz", content), ("text",))
