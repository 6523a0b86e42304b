"""Compiled code is found, tried in a child before it is loaded, kept where only its owner writes, and never required."""

import ctypes
import hashlib
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.data import Kind, Shard
from sightline.data.features import cache_folder
from sightline.models import build_model
from sightline.training import LocalWork, train_local
from sightline.training.compiled import compile_kernels, kernel_calls, library
from sightline.training.compiled import kernels as conv_walk
from sightline.training.compiled.library import Missing, find_library
from sightline.training.local_work import Paths

FOUND = library.find_library()
SHIPPED_LIBRARIES = library.shipped_libraries
NONE = (
    isinstance(FOUND, library.Missing) and compile_kernels.find_compiler() is None
)  # with a compiler there must be code
pytestmark = pytest.mark.skipif(NONE, reason="there is no C compiler here, and no compiled code was shipped")


@pytest.fixture
def copying_compiler(tmp_path, monkeypatch):
    """A compiler that hands out the library that is there already, and counts how often it was asked."""
    counter, script = tmp_path / "asked", tmp_path / "mycc"
    if not os.path.exists(FOUND._name):
        pytest.skip("the library was compiled for this process only")
    script.write_text(
        f"""#!/bin/sh
test "$1" = --version && {{ echo mycc 1; exit 0; }}
echo >> {counter}
while [ $# -gt 0 ]; do test "$1" = -o && {{ cp {FOUND._name} "$2"; exit 0; }}; shift; done
exit 1
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return counter


def times(counter):
    return counter.read_text().count("\n") if counter.exists() else 0


@pytest.fixture
def probes(monkeypatch):
    """How often a child was asked, and with what result."""
    seen, run = [], library.run_probe
    monkeypatch.setattr(library, "run_probe", lambda path: seen.append(run(path)) or seen[-1])
    return seen


def test_it_is_compiled_once_and_tried_once(fresh_search, copying_compiler, probes):
    for _ in range(3):
        find_library.cache_clear()
        assert isinstance(find_library(), ctypes.CDLL)
        assert library.library_digest() == hashlib.blake2b(Path(FOUND._name).read_bytes(), digest_size=8).hexdigest()
    assert times(copying_compiler) == 1
    assert probes == [""]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (fresh_search, *fresh_search.glob("kernels-*"))}
    assert modes == {0o700}
    assert len(list(fresh_search.iterdir())) == 2  # the library and what the child said: nothing half-written


def test_another_processor_or_source_is_another_build(fresh_search, copying_compiler, monkeypatch):
    compiler = compile_kernels.find_compiler()
    names = [library.name_build(compiler) for _ in range(2)]
    monkeypatch.setattr(library, "name_processor", lambda: "another")
    names.append(library.name_build(compiler))
    monkeypatch.setattr(library, "SOURCES", compile_kernels.SOURCES[:2])
    names.append(library.name_build(compiler))
    assert names[0] == names[1]
    assert len(set(names)) == 3


@pytest.mark.parametrize("damage", [b"", b"\x7fELF no library"])
def test_a_broken_file_in_the_cache_is_replaced(fresh_search, copying_compiler, probes, damage):
    assert isinstance(find_library(), ctypes.CDLL)
    (kept,) = fresh_search.glob("kernels-*")
    kept.unlink()
    kept.write_bytes(damage)
    kept.chmod(0o700)
    find_library.cache_clear()
    assert isinstance(find_library(), ctypes.CDLL)
    assert times(copying_compiler) == 2
    assert probes == ["", "compiled code cannot be loaded"]


def compile_text(text, folder):
    compiler = next((words for words in (["cc"], ["gcc"], ["clang"]) if compile_kernels.shutil.which(words[0])), None)
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source = folder / "planted.c"
    source.write_text(text)
    assert not compile_kernels.compile_sources(compiler, folder / "planted.so", ("-O0",), (source,))
    return folder / "planted.so"


NAMES = ("sightline_walk", "sightline_conv_bytes", "sightline_conv_walk", "sightline_normals")


@pytest.mark.parametrize(
    ("body", "says"),
    [("__builtin_trap();", "ends with signal"), ("", "does not compute what it should")],
)
def test_code_that_dies_or_errs_is_never_loaded(fresh_search, tmp_path, monkeypatch, probes, body, says):
    planted = compile_text("".join(f"long {name}(void) {{ {body} return 64; }}\n" for name in NAMES), tmp_path)
    monkeypatch.setattr(
        library, "compile_native", lambda compiler, target: bool(target.write_bytes(planted.read_bytes())) * ""
    )
    monkeypatch.setattr(kernel_calls, "open_library", lambda path: pytest.fail("it was loaded"))
    found = find_library()
    assert isinstance(found, Missing)
    assert says in found.reason
    assert all(says in said for said in probes)


def test_a_folder_that_others_may_write_is_not_used(fresh_search, copying_compiler):
    assert library.kept_folder() == fresh_search
    for mode in (0o770, 0o707):
        fresh_search.chmod(mode)
        assert library.kept_folder() is None
    fresh_search.chmod(0o700)
    fresh_search.parent.chmod(0o777)
    assert library.kept_folder() is None
    assert isinstance(find_library(), ctypes.CDLL)  # compiled for this process only
    assert not any(fresh_search.iterdir())


def test_a_user_without_a_home_keeps_nothing(fresh_search, copying_compiler, monkeypatch):
    """No HOME and a uid without a name: Path.home() raises RuntimeError, which was a traceback."""

    def unnamed(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unnamed)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError):
        Path.home()
    assert library.kept_folder() is None
    assert isinstance(find_library(), ctypes.CDLL)  # compiled for this process only
    with pytest.raises(NotADirectoryError):
        cache_folder().mkdir(parents=True)


def test_a_compiler_variable_with_an_open_quote_is_passed_over(monkeypatch):
    """`CC='gcc "'` was a traceback."""
    monkeypatch.delenv("CC", raising=False)
    usual = compile_kernels.find_compiler()
    monkeypatch.setenv("CC", 'gcc "')
    assert compile_kernels.find_compiler() == usual


def test_a_compiler_that_cannot_be_started_is_one_reason(fresh_search, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\0 no program")
    broken.chmod(0o700)
    monkeypatch.setenv("CC", str(broken))
    found = find_library()
    assert isinstance(found, Missing)
    assert "could not compile the kernels" in found.reason


def test_without_a_folder_to_compile_in_there_is_a_reason(fresh_search, monkeypatch):
    def full(*_, **__):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(library, "kept_folder", lambda: None)
    monkeypatch.setattr(library.tempfile, "TemporaryDirectory", full)
    found = find_library()
    assert isinstance(found, Missing)
    assert "No usable temporary directory found" in found.reason


def test_a_file_that_others_may_write_is_not_loaded(fresh_search, copying_compiler):
    find_library()
    (kept,) = fresh_search.glob("kernels-*")
    kept.chmod(0o777)
    find_library.cache_clear()
    assert isinstance(find_library(), ctypes.CDLL)
    assert times(copying_compiler) == 2


def test_the_best_shipped_library_is_taken_without_a_compiler(tmp_path, monkeypatch, fresh_search):
    if not os.path.exists(FOUND._name):
        pytest.skip("the library was compiled for this process only")
    monkeypatch.setattr(library, "shipped_libraries", SHIPPED_LIBRARIES)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    folder = tmp_path / compile_kernels.SHIPPED
    folder.mkdir()
    for name in ("x86-64-v4", "x86-64-v3", "x86-64"):
        (folder / f"{name}.so").write_bytes(b"broken" if name == "x86-64-v3" else Path(FOUND._name).read_bytes())
    flags = compile_kernels.X86_LEVELS["x86-64-v3"]
    monkeypatch.setattr(library, "processor_flags", lambda: frozenset(flags))
    find_library.cache_clear()
    assert [path.stem for path in library.shipped_libraries()] == ["x86-64-v3", "x86-64"]
    assert find_library()._name == str(folder / "x86-64.so")  # the better one was no library


def test_without_compiler_and_shipped_code_everything_runs_on_torch(fresh_search, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(conv_walk, "KERNELS", {})
    model = build_model("cnn_small", input_shape=(1, 28, 28), classes=10, kind=Kind.IMAGE, settings={})
    assert conv_walk.walk_kernel_for(model) == "no C compiler was found"
    rng, start = np.random.default_rng(0), model.init(np.random.default_rng(1))
    shard = Shard(rng.standard_normal((4, 1, 28, 28), dtype=np.float32), rng.integers(10, size=4))
    works = [LocalWork(0.1, batch_size=2, paths=Paths(plain=plain)) for plain in ("stack", "compiled")]
    ends = [next(train_local(model, start, [shard], work, rngs=[np.random.default_rng(2)]))[1] for work in works]
    assert torch.equal(*ends)


def test_the_child_needs_neither_torch_nor_sightline():
    if not os.path.exists(FOUND._name):
        pytest.skip("the library was compiled for this process only")
    code = f"""import runpy, sys
code = runpy.run_path({kernel_calls.__file__!r}, run_name="child")["main"]({FOUND._name!r})
print(code, "torch" in sys.modules, "sightline" in sys.modules)"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False", "False"]
