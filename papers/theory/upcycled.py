"""The convergence constants of Upcycled-FedProx: a calculator, no part of any run (Yin et al. 2024, section 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.errors import invalid


@dataclass(frozen=True)
class Constants:
    """C1, C2, C3 of Lemma 5.5: one upcycled round changes f by at most -C1 |grad f|^2 + C2 h1 + C3 h2."""

    c1: float
    c2: float
    c3: float

    @property
    def converges(self) -> bool:
        """Whether Theorem 5.6 says anything: C1 > 0."""
        return self.c1 > 0


def upcycled_constants(
    *, smoothness: float, dissimilarity: float, mu: float, rho: float, cohort: float, weight: float
) -> Constants:
    r"""Equations (11), (12) and (13) with L, B, mu, rho, K, lambda.

    L: smoothness of the local losses; B >= 1: dissimilarity of the clients; mu: proximal term; rho: strong convexity of
    the local objective with its proximal term; K: clients per round; lambda: penalty of the free step, u = mu / (mu +
    lambda).

    >>> found = upcycled_constants(smoothness=0.1, dissimilarity=1, mu=1, rho=1, cohort=100, weight=1)
    >>> round(found.c1, 4), round(found.c2, 4), round(found.c3, 4)
    (0.6603, 0.636, 0.016)
    """
    values = {"L": smoothness, "B": dissimilarity, "mu": mu, "rho": rho, "K": cohort, "lambda": weight}
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0) or (value == 0 and name != "lambda"):
            invalid(name, value, "is a positive number" if name != "lambda" else "is a number >= 0")
    if dissimilarity < 1:
        invalid("B", dissimilarity, "clients are at least as dissimilar as equal ones", "B = 1 is equal clients")
    big_l, b, root, u = smoothness, dissimilarity, math.sqrt(2 / cohort), mu / (mu + weight)
    c1 = (
        1 / mu
        - big_l * b / (mu**2 * rho)
        - big_l * b**2 / (2 * rho**2)
        - 2 * b**2 / (cohort * rho**2)
        - (2 * big_l * b + rho) / rho * root * b / rho
    )
    c2 = u * (
        big_l**2 / (mu**2 * rho)
        + (big_l + mu) / mu**2
        + big_l * (big_l + rho) * b / rho**2
        + 4 * big_l * b / (cohort * rho**2)
        + (4 * big_l**2 * b + rho * big_l * (1 + 2 * b)) / rho**2 * root
    )
    c3 = u**2 * (
        big_l * (big_l + rho) ** 2 / (2 * rho**2)
        + 2 * big_l**2 / (cohort * rho**2)
        + 2 * big_l * (big_l + rho) / rho * root * big_l / rho
    )
    return Constants(c1, c2, c3)


def upcycled_bound(
    constants: Constants | Sequence[Constants], *, rounds: int, gap: float, move: float, gradient: float
) -> float | None:
    r"""Theorem 5.6: (f(w_0) - f*) / (M C1) + C2 h d / C1 + C3 h^2 / C1, a bound on the least squared gradient norm.

    `move` h bounds |w_2m-1 - w_2m-2| and `gradient` d bounds |grad f| (Assumption 5.7), so that h1 <= h d and
    h2 <= h^2 in every round. `constants` are the same in all rounds, or a sequence for rounds 1 to M, as Corollary 5.8
    needs them: its lambda_m grows. None when C1 <= 0: the theorem says nothing then.
    """
    for name, value in (("rounds", rounds), ("gap", gap), ("move", move), ("gradient", gradient)):
        if not (math.isfinite(value) and value >= 0) or (name == "rounds" and value < 1):
            invalid(name, value, "is a number >= 0" if name != "rounds" else "is at least 1")
    sequence = [constants] * rounds if isinstance(constants, Constants) else list(constants)
    if len(sequence) != rounds:
        invalid("constants", len(sequence), f"rounds={rounds} need one each")
    if not sequence[0].converges:
        return None
    # The theorem sums over m = 0..M; the free step before the first round is counted like that after it.
    steady = sum(each.c2 * move * gradient + each.c3 * move**2 for each in (sequence[0], *sequence))
    return (gap + steady) / (rounds * sequence[0].c1)
