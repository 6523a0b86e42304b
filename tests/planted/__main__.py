"""Plant bugs and see whether the fast tests notice.

python -m tests.planted                    lists the bugs and the tests that must notice them
python -m tests.planted run                plants each into a copy of src; exit 0 when every one turns a test red
python -m tests.planted run NAME ...       some of them
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planted.bugs import BUGS, Bug
from tests.planted.edits import PACKAGE

ROOT = Path(__file__).parents[2]

RED, GREEN = 1, 0
"""What pytest exits with: any other number is neither, but a test run that did not happen."""


def planted_copy(directory: Path, bug: Bug | None) -> Path:
    """A copy of src under `directory`, with the bug in it."""
    source = directory / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for edit in bug.edits if bug else ():
        edit.apply(source)
    return source


def run_tests(source: Path, tests: list[str]) -> tuple[int, str]:
    """(exit code, output) of the fast among the tests on a copy of src, stopped at the first that is red."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    where = [sys.executable, "-c", "import sightline; print(sightline.__file__)"]
    found = subprocess.run(where, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_relative_to(source / PACKAGE):
        raise RuntimeError(f"the tests would run on {found.strip()}, not on the copy")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run([*command, *tests], env=environment, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def try_one(name: str, bug: Bug | None, tests: list[str]) -> tuple[int, str, float, str]:
    """(exit code, the test that was red, seconds, output) of the tests with a bug, or without any."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        source = planted_copy(Path(directory), bug)
        before = time.perf_counter()
        code, output = run_tests(source, tests)
    red = re.search(r"^FAILED (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    return code, red.group(1) if red else "", time.perf_counter() - before, output


def list_bugs() -> int:
    """Print the table."""
    width = max(map(len, BUGS))
    for name, bug in BUGS.items():
        print(f"{name:{width}}  {bug.says}")
        print(f"{'':{width}}  {', '.join(edit.where for edit in bug.edits)} -> {', '.join(bug.tests)}")
    print(f"{len(BUGS)} bugs")
    return 0


def run_bugs(names: list[str]) -> int:
    """Try the tests without a bug, then with each; 0 when they are green first and red every time after."""
    unknown = [name for name in names if name not in BUGS]
    if unknown:
        print(f"bug={unknown[0]}: no such bug; python -m tests.planted lists them", file=sys.stderr)
        return 2
    chosen = {name: BUGS[name] for name in names or BUGS}
    width = max(map(len, chosen))
    tests = sorted({test for bug in chosen.values() for test in bug.tests})
    code, red, seconds, output = try_one("", None, tests)
    if code != GREEN:
        print(output, file=sys.stderr)
        print(f"without any bug the tests are not green: {red or f'pytest exits with {code}'}", file=sys.stderr)
        return 1
    print(f"{'(no bug)':{width}}  green  {seconds:6.1f} s")
    survived = []
    for name, bug in chosen.items():
        code, red, seconds, output = try_one(name, bug, list(bug.tests))
        verdict = {RED: "caught", GREEN: "SURVIVED"}.get(code, "BROKEN")
        print(f"{name:{width}}  {verdict:8}  {seconds:6.1f} s  {red or output.strip().splitlines()[-1]}", flush=True)
        if code != RED:
            survived.append(name)
    print(
        f"{len(chosen) - len(survived)} of {len(chosen)} caught" + (f"; not {', '.join(survived)}" if survived else "")
    )
    return 1 if survived else 0


def main(words: list[str]) -> int:
    """The command line."""
    if not words:
        return list_bugs()
    if words[0] != "run":
        print(__doc__, file=sys.stderr)
        return 2
    return run_bugs(words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
