"""The line `# Takes: ...` of every experiment file, written from measurements."""

from functools import reduce
from operator import add

from papers.commands import file_command, listed, units
from papers.times import Time, measured, told
from sightline.config.experiment_file import Reproduction

UNKNOWN = "not measured yet"
BUSY = 1.5
"""A load above the number of cores by this factor: others had the machine too."""


def takes(reproduction: Reproduction, times: dict[str, Time]) -> str:
    """Return the time of the file and of the complete figure, on cores that may have been shared."""
    names, own = list(dict.fromkeys(units(reproduction.whole))), times.get(file_command(reproduction))
    if own is None:
        return UNKNOWN
    if not set(names) <= set(times):
        return f"{told(own.wall)} on {own.cores} {_busy(own)}cores; the whole {UNKNOWN}"
    whole = reduce(add, (times[name] for name in names))
    return (
        f"{told(own.wall)}; the whole {told(whole.wall)} on {whole.cores} {_busy(whole)}cores "
        f"({told(whole.processor)} of processor time)"
    )


def _busy(time: Time) -> str:
    return "busy " if time.load > BUSY * time.cores else ""


def write_heads() -> None:
    """Write the measured times into the files."""
    times = measured()
    for reproduction in listed():
        text = reproduction.file.read_text(encoding="utf-8")
        old, new = f"\n# Takes: {reproduction.takes}\n", f"\n# Takes: {takes(reproduction, times)}\n"
        reproduction.file.write_text(text.replace(old, new, 1), encoding="utf-8")
