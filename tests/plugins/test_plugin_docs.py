"""docs/plugins.md runs as it stands, and the example is installed into an environment of its own."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import sightline
from sightline import testing
from tests.commands import shell

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, body) for kind, body in BLOCK.findall(PAGE)]
OWN, COUNTED, TESTED = (body for kind, body in BLOCKS if kind == "python")


def test_the_snippet_has_ten_lines():
    assert len([line for line in OWN.splitlines() if line.strip()]) == 10


def test_the_snippet_runs_by_the_command_beside_it(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    (command,) = (body for kind, body in BLOCKS if kind == "bash")
    shell(command.strip() + " --set rounds=2 --set data.clients=20 --out run\n", tmp_path)
    run = sightline.api.Run(tmp_path / "run")
    assert run.epsilon <= 8
    assert run.metadata["algorithm_settings"] == {"momentum": 0.3}
    sys.modules.pop("own", None)


@pytest.mark.slow
def test_the_snippet_keeps_the_laws():
    names = {}
    exec(OWN + TESTED, names)  # the page's own blocks
    names["test_the_laws"]()


def test_the_count_is_released_charged_and_checked(tmp_path, monkeypatch):
    (tmp_path / "counted.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    few = ["rounds=3", "data.clients=20", "privacy.mechanism=counted:COUNTED"]
    run = sightline.run(ROOT / "examples" / "quickstart.toml", overrides=few, out=tmp_path / "run")
    assert 7.99 < run.epsilon <= 8
    events = {release.event for release in run.ledger if "public" in release.audience}
    assert [part.noise_multiplier for event in events for part in event.event.events] == [
        pytest.approx(2**0.5 * run.metadata["noise_multiplier"])
    ] * 2
    assert len({row["clipped"] for row in run.history}) == 3
    sys.modules.pop("counted", None)


def test_the_page_names_every_kind():
    from sightline.plugins import KINDS

    for kind in KINDS:
        assert f"`{kind.group}`" in PAGE
    for name in testing.__all__:
        assert name in PAGE or name == "confirm_ledger"


def run_in(python, *words, cwd):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run([str(python), *words], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_example_is_installed_and_its_own_tests_pass(tmp_path):
    """Sightline and the plugin from their wheels, in an environment that shares only other people's packages."""
    for folder in (ROOT, ROOT / "examples" / "plugin"):
        words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
        copy = tmp_path / folder.name
        import shutil

        left_out = shutil.ignore_patterns(".*", "__pycache__", "tests", "docs", "build", "dist", "runs", "*.egg-info")
        shutil.copytree(folder, copy, ignore=left_out)
        run_in(sys.executable, *words, str(copy), cwd=tmp_path)
    run_in(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=tmp_path)
    clean = tmp_path / "clean" / "bin" / "python"
    site = Path(run_in(clean, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    wheels = sorted(str(path) for path in (tmp_path / "wheels").glob("*.whl"))
    assert len(wheels) == 2
    run_in(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), *wheels, cwd=tmp_path)
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run_in(
        clean, "-c", "import sightline, sightline_example as e; print(sightline.__file__, e.__file__)", cwd=tmp_path
    )
    assert all(Path(path).is_relative_to(site) for path in where.split())
    own = ROOT / "examples" / "plugin" / "tests"
    told = run_in(
        clean,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-c",
        os.devnull,
        str(own),
        cwd=tmp_path,
    )
    assert "5 passed" in told
    told = run_in(clean, "-m", "sightline", "run", str(own.parent / "plugin.toml"), "--set", "rounds=1", cwd=tmp_path)
    assert "epsilon" in told
