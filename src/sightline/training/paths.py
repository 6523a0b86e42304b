"""The exact paths that local training can take: the same numbers up to float32 rounding, at different speeds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sightline.errors import invalid


@dataclass(frozen=True)
class Paths:
    """Which path each kind of work takes.

    Guarantees: every path computes the same function of the same data and the same random words, up to float32
    rounding; which one is fastest depends on the processor.
    """

    plain: str = "stack"
    """Plain steps of convolutional chains: `stack` (clients side by side), `loop` (one after the other), `folded` (a
    loop whose steps of SGD are part of the products; where there is momentum, weight decay, Adam, a term or a step
    norm it is `loop`), `compiled`."""
    record: str = "unfold"
    """Per-example gradients of convolutions: `unfold` (patches and products) or `grouped` (one grouped convolution)."""
    noise: str = "torch"
    """Normal numbers of DP-SGD's steps from raw words: `torch` or `compiled`."""

    def describe(self) -> dict[str, str]:
        """Field -> path, as a run records them."""
        return asdict(self)


BY_RULE = Paths()
"""What is taken where nothing was measured."""

KNOWN = {
    "plain": ("stack", "loop", "folded", "compiled"),
    "record": ("unfold", "grouped"),
    "noise": ("torch", "compiled"),
}
"""Field -> every path that there is, the rule's first; which of them exist for a model is asked elsewhere."""


def read_paths(recorded: Mapping[str, Any] | None) -> Paths:
    """The paths that a run recorded; what it does not name is by rule, and a word that nobody knows is refused.

    >>> read_paths({"plain": "loop"})
    Paths(plain='loop', record='unfold', noise='torch')
    """
    given = dict(recorded or {})
    for name, word in given.items():
        if name not in KNOWN or word not in KNOWN[name]:
            known = ", ".join(KNOWN.get(name, [one.name for one in fields(Paths)]))
            invalid(f"paths.{name}", word, f"this version knows {known}", "use the version that began the run")
    return Paths(**given)
