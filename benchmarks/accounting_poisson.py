"""Claim: Poisson accounting is at least as fast as dp_accounting's PLD, at an epsilon no larger (up to 0.03%)."""

import time
from typing import Any

from benchmarks.measure import line

NOISE, RATE, STEPS, DELTA = 2.05, 0.1, 1000, 1e-5
GOAL = 1.0


def run() -> dict[str, Any]:
    from sightline.accounting import poisson

    poisson(noise=1.0, rate=0.5, steps=2).epsilon(delta=DELTA)
    ours, our_epsilon = best_of(
        3, lambda k: poisson(noise=NOISE + 1e-7 * k, rate=RATE, steps=STEPS).epsilon(delta=DELTA)
    )
    theirs, their_epsilon = best_of(3, lambda k: google(NOISE + 1e-7 * k))
    result = line("accounting_poisson", theirs / ours, GOAL, at_least=True)
    result["ok"] = result["ok"] and our_epsilon <= their_epsilon * 1.0003
    return result | {
        "epsilon": {"ours": round(our_epsilon, 4), "theirs": round(their_epsilon, 4)},
        "seconds": {"ours": round(ours, 3), "theirs": round(theirs, 3)},
    }


def google(noise: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, STEPS)
    return float(accountant.get_epsilon(DELTA))


def best_of(times: int, call) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Least seconds and last value; the argument differs each time, so that no cache answers."""
    seconds = []
    for k in range(times):
        begun = time.perf_counter()
        value = call(k)
        seconds.append(time.perf_counter() - begun)
    return min(seconds), value
