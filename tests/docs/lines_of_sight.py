"""The picture of the README: `python -m tests.docs.lines_of_sight` runs its example and writes its epsilons."""

import re
import tempfile
from pathlib import Path

import sightline
from sightline.formatting import format_upper

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "hospitals.toml"
PICTURE = ROOT / "docs" / "images" / "lines-of-sight.svg"
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
OBSERVERS = ("server", "other clients", "public")
"""In the order in which picture and pages name them."""


def run_example() -> tuple[list[str], float]:
    """Return the epsilons against the observers, rounded up, and the test accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        summary = sightline.run(EXAMPLE, out=Path(folder) / "run", progress=False).summary
    return [format_upper(summary["observers"][kind]) for kind in OBSERVERS], summary["test_accuracy"]


def write_epsilons(text: str, epsilons: list[str]) -> str:
    """Return the text of the picture or of a page with its three epsilons replaced, in their order."""
    left = iter(epsilons)
    text = re.sub(r"(ε ≤ )[\d.]+", lambda found: found[1] + next(left), text)
    said = r"(learns at most epsilon )[\d.]+((?: of hospital A)?, another hospital )[\d.]+(, the public )[\d.]+(?=\])"
    return re.sub(said, r"\g<1>{}\g<2>{}\g<3>{}".format(*epsilons), text)


def main() -> None:
    """Write picture and pages."""
    epsilons, accuracy = run_example()
    for path in (PICTURE, *PAGES):
        path.write_text(write_epsilons(path.read_text(encoding="utf-8"), epsilons), encoding="utf-8")
    print(f"epsilon {', '.join(epsilons)} against {', '.join(OBSERVERS)}; test accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
