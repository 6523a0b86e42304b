"""The line `# Takes: ...` of every file of the gallery, written from what was measured."""

from functools import reduce
from operator import add

from experiments.gallery import file_command, listed, units
from experiments.times import Time, measured, told
from sightline.config.exhibit import Exhibit

UNKNOWN = "not measured yet"
BUSY = 1.5
"""A load above the number of cores by this factor: others had the machine too."""


def takes(exhibit: Exhibit, times: dict[str, Time]) -> str:
    """How long the file and the whole took; both must have been measured."""
    names = list(dict.fromkeys(units(exhibit.whole)))
    if not {file_command(exhibit), *names} <= set(times):
        return UNKNOWN
    whole = reduce(add, (times[name] for name in names))
    busy = "busy " if whole.load > BUSY * whole.cores else ""
    return (
        f"{told(times[file_command(exhibit)].wall)}; the whole {told(whole.wall)} on {whole.cores} {busy}cores "
        f"({told(whole.processor)} of processor time)"
    )


def write_heads() -> None:
    """Put what was measured into the files."""
    times = measured()
    for exhibit in listed():
        text = exhibit.file.read_text(encoding="utf-8")
        old, new = f"\n# Takes: {exhibit.takes}\n", f"\n# Takes: {takes(exhibit, times)}\n"
        exhibit.file.write_text(text.replace(old, new, 1), encoding="utf-8")
