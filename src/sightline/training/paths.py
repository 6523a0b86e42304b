"""The exact paths that local training can take: the same numbers up to float32 rounding, at different speeds."""

from dataclasses import dataclass


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


BY_RULE = Paths()
"""What is taken where nothing was measured."""
