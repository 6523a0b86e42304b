"""The last measured time of every command, and the commit it ran on: papers/times.json, made_on.json."""

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

TIMES = Path(__file__).parent / "times.json"
MADE_ON = Path(__file__).parent / "made_on.json"


@dataclass(frozen=True)
class Time:
    """The minutes of one command, and the load of the machine."""

    wall: float
    processor: float
    cores: int
    load: float
    """Mean of the machine's load before and after; idle but for the command it is at most the number of cores."""

    def __add__(self, other: "Time") -> "Time":
        load = max(self.load, other.load)
        return Time(self.wall + other.wall, self.processor + other.processor, self.cores, load)


def measured(path: Path = TIMES) -> dict[str, Time]:
    """Return command -> time."""
    if not path.is_file():
        return {}
    return {command: Time(**plain) for command, plain in json.loads(path.read_text(encoding="utf-8")).items()}


def keep(times: dict[str, Time], path: Path = TIMES) -> None:
    """Write the times, sorted, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: {k: round(v, 3) for k, v in asdict(time).items()} for name, time in sorted(times.items())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in plain.items())
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def told(minutes: float) -> str:
    """Format a time: seconds below a minute, else minutes."""
    seconds = max(1, round(60 * minutes))
    return f"{seconds} s" if seconds < 60 else f"{minutes:.0f} min" if minutes >= 9.5 else f"{minutes:.1f} min"


def made_on(path: Path = MADE_ON) -> dict[str, str]:
    """Return system -> the commit whose source made its kept results."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def note_commit(system: str, path: Path = MADE_ON) -> None:
    """Record the current commit, with a + if code (not results) has changed since."""
    code = ("--", ":/src", ":(top,glob)papers/**/*.py", ":(top,glob)papers/**/*.toml")
    changed = "+" if _ask_git("status", "--porcelain", *code) else ""
    notes = made_on(path) | {system: (_ask_git("rev-parse", "--short=10", "HEAD") or "unknown") + changed}
    path.write_text(json.dumps(notes, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _ask_git(*words: str) -> str:
    """Return git's answer, or an empty text without git."""
    try:
        said = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return said.stdout.strip()
