"""What a shell would start, in this process: a process of its own would load torch again before it begins."""

import importlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from sightline.apps.cli.main import run_arguments


@contextmanager
def at_work_in(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """In that folder, with its modules to import; they are forgotten afterwards, as when a process ends."""
    path, known = list(sys.path), set(sys.modules)
    with chdir(folder), mock.patch.dict(os.environ, environment):
        sys.path.insert(0, str(Path.cwd()))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - known:
                file = getattr(sys.modules[name], "__file__", None)
                if file and Path(file).resolve().is_relative_to(Path.cwd()):
                    del sys.modules[name]


def command(*words: str, cwd: Path = Path(), **environment: str) -> subprocess.CompletedProcess[str]:
    """`sightline` with those words, as `main` calls it: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with at_work_in(cwd, environment), redirect_stdout(out), redirect_stderr(err):
        code = run_arguments(list(words))
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def shell(lines: str, cwd: Path) -> None:
    """Shell lines, each of which calls `sightline` and must succeed."""
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, *words = shlex.split(line, comments=True)
            assert name == "sightline", f"{line}: this is for bash"
            done = command(*words, cwd=cwd)
            assert done.returncode == 0, f"{line}\n{done.stderr[-3000:]}"


def program(code: str, cwd: Path) -> None:
    """Python code as a program in that folder."""
    printed(code, cwd)


def printed(code: str, cwd: Path) -> str:
    """What Python code prints as a program in that folder."""
    out = io.StringIO()
    with at_work_in(cwd, {}), redirect_stdout(out):
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    return out.getvalue()
