"""Files that an experiment names: no device, no pickle, no name that is none gets past the readers."""

import os
import pickle

import numpy as np
import pytest
import safetensors.numpy

from sightline.config import parse
from sightline.engine import build_experiment
from sightline.errors import InvalidInput
from sightline.ledger import read_export
from sightline.resources import read_table
from sightline.topology import read_memberships
from sightline.topology.tree import read_tree

STRANGE = ["/dev/zero", "/dev/stdin", ".", "", "a\0b", "x" * 5000, [], {}, 7, None, True, "loop"]


@pytest.fixture
def loop(tmp_path, monkeypatch):
    """A folder with a link to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")


@pytest.mark.parametrize("name", STRANGE, ids=lambda name: repr(name)[:12])
@pytest.mark.parametrize(
    "reader",
    [read_memberships, read_tree, read_export, lambda name: read_table({"file": name}, clients=2)],
    ids=["memberships", "trees", "ledgers", "tables"],
)
def test_what_is_no_file_is_one_line(loop, reader, name):
    with pytest.raises(InvalidInput) as caught:
        reader(name)
    assert "\n" not in str(caught.value)


def test_a_file_without_end_is_not_read(tmp_path):
    path = tmp_path / "x.json"
    path.touch()
    os.truncate(path, 2**40)  # takes no room on the disk
    for reader in (read_memberships, read_tree, read_export):
        with pytest.raises(InvalidInput):
            reader(path)


def start_from(path):
    plain = {"rounds": 1, "data": {"source": "digits", "clients": 3}, "model": {"name": "linear", "init": str(path)}}
    return build_experiment(parse(plain)).start


def test_a_model_to_start_from_runs_no_code_and_is_finite(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code ran"),)

    bad = tmp_path / "x.safetensors"
    for content in (pickle.dumps(Bomb()), b"", b"\xff" * 64, b"{}", (2**60).to_bytes(8, "little") + b"{}"):
        bad.write_bytes(content)
        with pytest.raises(InvalidInput):
            start_from(bad)
    assert not (tmp_path / "code ran").exists()
    for name in ("/dev/zero", tmp_path, tmp_path / "nowhere", "a\0b"):
        with pytest.raises(InvalidInput):
            start_from(name)


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_a_model_to_start_from_that_is_not_finite_is_refused(tmp_path, fill):
    parameters = {"output.weight": np.zeros((10, 64), np.float32), "output.bias": np.full(10, fill, np.float32)}
    safetensors.numpy.save_file(parameters, tmp_path / "x.safetensors")
    with pytest.raises(InvalidInput, match="not finite"):
        start_from(tmp_path / "x.safetensors")
