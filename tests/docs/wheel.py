"""What `make wheel-test` runs in an empty environment: an installed Sightline, not the one of the clone."""

import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path


def main(quickstart: str) -> None:
    import sightline

    assert Path(sightline.__file__).is_relative_to(sys.prefix), "this is not the installed package"
    assert version("sightline") == sightline.__version__
    for name in (
        "py.typed",
        "apps/report/page.html",
        "apps/report/page.css",
        "apps/report/page.js",
        "apps/serve/serve.css",
    ):
        assert files("sightline").joinpath(name).is_file(), f"the wheel does not hold {name}"
    command = [str(Path(sys.executable).with_name("sightline"))]
    subprocess.run([*command, "--version"], check=True)
    subprocess.run([*command, "run", quickstart, "--out", "quickstart"], check=True)
    page = (Path("quickstart") / "report.html").read_text(encoding="utf-8")
    assert "<style>" in page
    assert "<script" in page


if __name__ == "__main__":
    main(sys.argv[1])
