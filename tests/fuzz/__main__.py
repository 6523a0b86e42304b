"""`python -m tests.fuzz TARGET [SECONDS]`: fuzz one reader with atheris; new inputs go to .fuzz/, crashes too."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
WORK = Path(".fuzz")
READERS = [
    "json", "tomllib", "zipfile", "gzip", "http.cookies", "urllib.parse", "sightline.errors", "sightline.config",
    "sightline.events", "sightline.ledger", "sightline.data.formats", "sightline.engine.record",
    "sightline.engine.checkpoint", "sightline.runtimes.remote.message", "sightline.runtimes.remote.clients",
    "sightline.apps.serve", "sightline.resources",
    "sightline.topology.groups", "sightline.topology.tree",
]  # fmt: skip
"""The modules whose branches guide the search."""


def main() -> None:
    """Instrument, then fuzz for so long; libFuzzer prints how many executions there were and ends with 0, or a crash."""
    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    import atheris

    with atheris.instrument_imports(include=READERS):
        from tests.fuzz.targets import TARGETS
    found = WORK / name
    found.mkdir(parents=True, exist_ok=True)
    words = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"]
    folders = [str(found), str(HERE / "corpus" / name)]
    atheris.Setup([sys.argv[0], *words, f"-artifact_prefix={WORK}/{name}-", *folders], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
