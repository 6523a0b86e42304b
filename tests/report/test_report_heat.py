"""A map draws every cell once, never lighter than it is, and ends where the values end."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from sightline.apps.report.matrix import SHADES, draw_heat

VALUES = st.one_of(st.none(), st.just(0.0), st.just(math.inf), st.floats(1e-3, 50))


@st.composite
def tables(draw):
    down, across = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return [draw(st.lists(VALUES, min_size=across, max_size=across)) for _ in range(down)]


def painted(found):
    """(row, column) -> kind and opacity, from the paths alone."""
    cells = {}
    for shade in found["shades"]:
        for x, y, width, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", shade["path"]):
            assert width == back
            for column in range(int(x), int(x) + int(width)):
                assert (int(y), column) not in cells
                cells[int(y), column] = (shade["kind"], float(shade["opacity"]))
    return cells


@given(tables())
def test_every_cell_is_painted_once_and_never_too_light(values):
    names = [str(n) for n in range(max(len(values), len(values[0])))]
    found = draw_heat(values, names[: len(values)], names[: len(values[0])])
    cells = painted(found)
    top = max((v for row in values for v in row if v is not None and math.isfinite(v)), default=0.0)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            kind, opacity = cells.get((y, x), ("nothing", 0.0))
            if value is None or value == 0 or math.isinf(value):
                assert kind == {None: "self", 0.0: "nothing", math.inf: "clear"}[value]
            else:
                assert kind == ""
                assert value / top - 1e-3 <= opacity <= value / top + 1 / SHADES + 1e-3


def test_many_equal_cells_are_one_stroke():
    found = draw_heat([[1.0] * 200] * 200, ["a"] * 200, ["b"] * 200)
    (shade,) = found["shades"]
    assert shade["path"].count("M") == 200
    assert len(found["row_ticks"]) <= 24
