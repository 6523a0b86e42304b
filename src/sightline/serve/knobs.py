"""Knobs: the numbers that a calculator's page turns."""

import math
from dataclasses import dataclass, replace
from typing import Any

from sightline.errors import invalid
from sightline.report.numbers import format_short
from sightline.serve.message import Request


@dataclass(frozen=True)
class Knob:
    """One number of a scheme: its name, its meaning, its range, and where it starts. Its scale is logarithmic."""

    name: str
    label: str
    low: float
    high: float
    start: float
    whole: bool = False
    command: str = "account"
    """Which command goes further."""

    def starting_at(self, start: float) -> "Knob":
        """The same knob with another start."""
        return replace(self, start=start)

    def read(self, text: str) -> float:
        """The number in a text; outside of its range it is refused."""
        try:
            value = float(text) if text else self.start
        except ValueError:
            invalid(self.name, text, "is not a number")
        if not self.low <= value <= self.high:
            law = f"the calculator goes from {self.low:g} to {self.high:g}"
            invalid(self.name, text, law, f"use sightline {self.command}")
        if self.whole and value != int(value):
            invalid(self.name, text, "a whole number")
        return int(value) if self.whole else value


NOISE = Knob("noise", "Noise multiplier z", 0.2, 50, 1.0)
STEPS = Knob("steps", "Steps", 1, 1_000_000, 1000, whole=True)
RATE = Knob("rate", "Rate", 1e-6, 1, 0.1)
DELTA = Knob("delta", "Delta", 1e-12, 0.1, 1e-5)
EPSILON = Knob("epsilon", "Epsilon", 0.01, 1000, 8.0, command="calibrate")


def drawn_knob(knob: Knob, request: Request) -> dict[str, Any]:
    """A knob as the page draws it, where the request left it."""
    return {
        "name": knob.name,
        "label": knob.label,
        "value": _number_text(request.one(knob.name) or format_short(knob.start, 12)),
        "low": f"{math.log10(knob.low):.4f}",
        "high": f"{math.log10(knob.high):.4f}",
        "whole": knob.whole,
    }


def _number_text(text: str) -> str:
    """The text, where it is a number: nothing else goes into a field for numbers."""
    try:
        return text if math.isfinite(float(text)) else ""
    except ValueError:
        return ""
