"""Epsilon step by step, as a list that draws itself in a notebook."""

from sightline import shown


class Curve(list[float]):
    """Epsilon after 1, 2, ... repetitions, at one delta."""

    def __init__(self, values: list[float], *, delta: float) -> None:
        super().__init__(values)
        self.delta = delta

    def _repr_html_(self) -> str:
        if not self:
            return "<p>nothing was released</p>"
        ends = f"{shown.rounded_up(self[0])} after 1, {shown.rounded_up(self[-1])} after {len(self):,}"
        return shown.svg_curve(f"epsilon at delta = {self.delta:g}: {ends}", self) or f"<p>epsilon: {ends}</p>"
