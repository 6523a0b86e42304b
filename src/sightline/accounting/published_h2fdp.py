"""The noise that H2FDP's Proposition 3.1 prints (Lin and Brinton): for comparison only, not a guarantee."""

import math

from sightline.accounting.published import AsPublished
from sightline.errors import invalid

H2FDP_NOTICE = (
    "as_published: H2FDP's Proposition 3.1, an asymptotic form with an unnamed constant; it is not a guarantee"
)

CONSTANT = 2.0
"""c2 of the proposition, which the paper does not name; 2 is what moments-accountant papers usually take."""


def as_published_noise(
    *, rate: float, steps: int, epsilon: float, delta: float, constant: float = CONSTANT
) -> AsPublished:
    r"""sigma_DP / Delta = c2 q sqrt(L log(1/delta)) / epsilon, eq. (15): L aggregations, q of a single step.

    >>> round(as_published_noise(rate=0.05, steps=800, epsilon=1.0, delta=1e-5).value, 3)
    9.597
    """
    for name, value in (("rate", rate), ("steps", steps), ("epsilon", epsilon), ("constant", constant)):
        if not (math.isfinite(value) and value > 0):
            invalid(name, value, "is a positive number")
    if not 0 < delta < 1:
        invalid("delta", delta, "delta lies in (0, 1)")
    return AsPublished(constant * rate * math.sqrt(steps * math.log(1 / delta)) / epsilon, H2FDP_NOTICE)
