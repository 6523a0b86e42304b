"""What every command took when it was last measured: experiments/times.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

TIMES = Path(__file__).parent / "times.json"


@dataclass(frozen=True)
class Time:
    """Minutes of one command, and how busy the machine was."""

    wall: float
    processor: float
    cores: int
    load: float
    """Mean of the machine's load before and after; idle but for the command it is at most the number of cores."""

    def __add__(self, other: "Time") -> "Time":
        load = max(self.load, other.load)
        return Time(self.wall + other.wall, self.processor + other.processor, self.cores, load)


def measured(path: Path = TIMES) -> dict[str, Time]:
    """Command -> its time."""
    if not path.is_file():
        return {}
    return {command: Time(**plain) for command, plain in json.loads(path.read_text(encoding="utf-8")).items()}


def keep(times: dict[str, Time], path: Path = TIMES) -> None:
    """Write them, sorted, a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: {k: round(v, 3) for k, v in asdict(time).items()} for name, time in sorted(times.items())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in plain.items())
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def told(minutes: float) -> str:
    """Seconds below a minute, else minutes."""
    seconds = max(1, round(60 * minutes))
    return f"{seconds} s" if seconds < 60 else f"{minutes:.0f} min" if minutes >= 9.5 else f"{minutes:.1f} min"
