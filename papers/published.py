"""`python -m papers.published`: noise and epsilon as the papers compute them. None of it is a guarantee of Sightline."""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from sightline import accounting
from sightline.accounting.accountant import check_delta
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.moments import ORDERS, overlap_moments, sampled_moments
from sightline.apps.cli.main import run_arguments
from sightline.errors import invalid
from sightline.events import Pure
from sightline.mechanisms import segment_rate
from sightline.mechanisms.perturbation import REMAINDER

NOTICE = "the paper's own accounting, reproduced for comparison; it is not a guarantee"


def classic_epsilon(moments: Array, delta: float) -> float:
    """Return epsilon by Proposition 2.3, over the integer orders."""
    return float(np.min((moments[2:] + math.log(1 / delta)) / (ORDERS[2:] - 1)))


def gaussian_moments(noise: float) -> Array:
    """(a - 1) D_a of the Gaussian mechanism."""
    return np.asarray(ORDERS * (ORDERS - 1) / (2 * noise**2))


def poisson_moments(noise: float, rate: float, steps: int) -> Array:
    """The moments of Theorem 3.11."""
    return steps * sampled_moments(gaussian_moments(noise), rate)


def balanced_moments(noise: float, steps: int, uses: int, epochs: int = 1) -> Array:
    """The moments of Theorem 3.8 with bound (3)."""
    return epochs * overlap_moments(steps, uses, noise)


def split_moments(noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None = None) -> Array:
    """The moments of Theorem 3.4 with bound (3), sampled; the unsplit part is under the same draw."""
    inner = overlap_moments(parts, 1, noise)
    if unsplit_noise is not None:
        inner = inner + gaussian_moments(unsplit_noise)
    return steps * sampled_moments(inner, rate)


def calibrate_published(moments_at: Callable[[float], Array], *, epsilon: float, delta: float) -> float:
    """Return the noise at which the partitioning paper's accounting spends exactly (epsilon, delta)."""
    low, high = 1e-2, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if classic_epsilon(moments_at(middle), delta) > epsilon else (low, middle)
    return high


def clustered_noise(
    *, samples: int, batch_size: int, rounds: int, selections: int, selection_epsilon: float, epsilon: float,
    delta: float,
) -> float:  # fmt: skip
    """The noise multiplier of R-DPCFL's split of one delta over two guarantees: infinite if choices use up the budget.

    >>> numbers = {"samples": 8000, "batch_size": 32, "rounds": 200, "selections": 20}
    >>> round(clustered_noise(**numbers, selection_epsilon=0.3, epsilon=10.0, delta=1e-4), 3)
    1.089
    """
    check_delta(delta)
    rho = selections * (selection_epsilon * selection_epsilon / 8)
    left = epsilon - rho - 2 * math.sqrt(rho * math.log(1 / delta))
    if left <= 0:
        return math.inf
    steps = (rounds - 1) * -(-samples // batch_size)
    rate = min(1.0, batch_size / samples)
    return calibrate_published(
        lambda noise: gaussian_moments(noise) + poisson_moments(noise, rate, steps), epsilon=left, delta=delta
    )


# c2 of the proposition, which the paper does not name; 2 is the usual value in moments-accountant papers.
CONSTANT = 2.0


def h2fdp_noise(*, rate: float, steps: int, epsilon: float, delta: float, constant: float = CONSTANT) -> float:
    r"""H2FDP's sigma_DP / Delta = c2 q sqrt(L log(1/delta)) / epsilon, eq. (15): L aggregations, q of a single step.

    >>> round(h2fdp_noise(rate=0.05, steps=800, epsilon=1.0, delta=1e-5), 3)
    9.597
    """
    for name, value in (("rate", rate), ("steps", steps), ("epsilon", epsilon), ("constant", constant)):
        if not (math.isfinite(value) and value > 0):
            invalid(name, value, "is a positive number")
    if not 0 < delta < 1:
        invalid("delta", delta, "delta lies in (0, 1)")
    return constant * rate * math.sqrt(steps * math.log(1 / delta)) / epsilon


def output_epsilon(*, rounds: int, clip_norm: float, noise_std: float, size: int, delta: float) -> float:
    """What Theorem 6.2 of Yin et al. 2024 claims for output perturbation, with sensitivity tau / |D|.

    >>> round(output_epsilon(rounds=80, clip_norm=1.0, noise_std=1.0, size=100, delta=1e-5), 4)
    0.4332
    """
    spent = rounds * (clip_norm / (noise_std * size)) ** 2 / 2
    return 2 * math.sqrt(spent * math.log(1 / delta)) + spent


def objective_epsilon(
    *, rounds: int, rate: float, curvature: float, size: float, u1: float = math.sqrt(2), u2: float = 0.5
) -> float:
    """What Theorem 6.3 of Yin et al. 2024 claims for objective perturbation: gradients up to u1, curvature up to u2.

    >>> round(objective_epsilon(rounds=80, rate=10.0, curvature=1.0, size=100), 4)
    23.7474
    >>> printed = {"curvature": 0.5, "size": 224.2, "u1": 1.0, "u2": 0.11}
    >>> [round(objective_epsilon(rounds=m, rate=a, **printed), 2) for m, a in ((80, 10.0), (40, 20.0))]
    [7.36, 7.25]
    """
    return rounds * (2 * rate * u1 * curvature + 2.8 * u2) / (size * curvature)


def objective_cost(*, rate: float, curvature: float, size: float, classes: int) -> float:
    """Pure epsilon of one exact minimiser of softmax regression, as Sightline states it: one example removed."""
    return (rate * math.sqrt(2) / size + (1 - 1 / classes) / (size * curvature)) / (1 - REMAINDER)


TABLE_1 = """
\b
Examples:
  python -m papers.published partitioning poisson --noise 2.34 --rate 0.1 --steps 1000
  python -m papers.published partitioning split --parts 3 --rate 0.1 --steps 1000 --unsplit-noise 1 --epsilon 8
"""


@click.group("published")
def command() -> None:
    """Noise and epsilon as the papers compute them, for comparison. None of it is a guarantee."""


EPSILON = click.option("--epsilon", type=float, required=True)
DELTA = click.option("--delta", type=float, default=1e-5, show_default=True)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")


def show(answer: dict[str, float], as_json: bool, note: str = "") -> int:
    """Print the numbers with a notice that they are no guarantee, and a note on what they leave out."""
    finite = {name: value if math.isfinite(value) else "infinity" for name, value in answer.items()}
    shown: dict[str, Any] = finite | ({"note": note} if note else {}) | {"notice": NOTICE}
    click.echo(json.dumps(shown) if as_json else "\n".join(f"{name:12} {value}" for name, value in shown.items()))
    return 0


@command.command("h2fdp")
@click.option("--rate", type=float, required=True, help="Probability of taking part in a step.")
@click.option("--steps", type=int, required=True, help="Number of noisy releases: segments, not local steps.")
@click.option("--segment", type=int, default=5, show_default=True, help="Local steps in each release, m.")
@click.option("--constant", type=float, default=CONSTANT, show_default=True, help="c2, which the paper does not name.")
@EPSILON
@DELTA
@JSON
def h2fdp(rate: float, steps: int, segment: int, constant: float, epsilon: float, delta: float, as_json: bool) -> int:
    """Noise of H2FDP's Proposition 3.1, and what it costs in truth (`sightline calibrate h2fdp`: the noise needed)."""
    noise = h2fdp_noise(rate=rate, steps=steps, epsilon=epsilon, delta=delta, constant=constant)
    true = accounting.segment(noise=noise, steps=segment, rate=rate, segments=steps).epsilon(delta=delta)
    return show({"noise": noise, "costs": true, "segment_rate": segment_rate(rate, segment)}, as_json)


@command.command("clustered")
@click.option("--samples", type=int, required=True, help="Examples of the client.")
@click.option("--batch-size", type=int, required=True, help="Batch size of the later rounds.")
@click.option("--rounds", type=int, required=True, help="Rounds; the first is a full batch.")
@click.option("--selections", type=int, help="Private choices [default: a tenth of the rounds].")
@click.option("--selection-epsilon", type=float, help="What one choice costs [default: 0.03 epsilon].")
@EPSILON
@DELTA
@JSON
def clustered(
    rounds: int, selections: int | None, selection_epsilon: float | None, epsilon: float, as_json: bool, **numbers: Any
) -> int:
    """Noise of R-DPCFL's split of one delta over two guarantees (`sightline calibrate clustered`: the noise needed)."""
    selections = rounds // 10 if selections is None else selections
    choice = 0.03 * epsilon if selection_epsilon is None else selection_epsilon
    noise = clustered_noise(
        **numbers, rounds=rounds, selections=selections, selection_epsilon=choice, epsilon=epsilon
    )  # fmt: skip
    return show({"noise": noise}, as_json)


@command.command("output")
@click.option("--rounds", type=int, required=True)
@click.option("--clip-norm", type=float, default=1.0, show_default=True, help="tau.")
@click.option("--noise-std", type=float, required=True, help="Standard deviation of the noise.")
@click.option("--size", type=int, required=True, help="|D|: examples of the client.")
@DELTA
@JSON
def output(rounds: int, clip_norm: float, noise_std: float, size: int, delta: float, as_json: bool) -> int:
    """Epsilon of Upcycled-FL's Theorem 6.2 for output perturbation, and the epsilon of a model clipped to tau."""
    claimed = output_epsilon(rounds=rounds, clip_norm=clip_norm, noise_std=noise_std, size=size, delta=delta)
    true = accounting.gaussian(noise=noise_std / (2 * clip_norm), steps=rounds).epsilon(delta=delta)
    return show({"epsilon": claimed, "costs": true}, as_json)


@command.command("objective")
@click.option("--rounds", type=int, required=True)
@click.option("--rate", type=float, required=True, help="alpha: rate of the linear term's noise.")
@click.option("--curvature", type=float, required=True, help="mu: the proximal or L2 term.")
@click.option("--size", type=float, required=True, help="|D|: examples of the client; a mean may be a fraction.")
@click.option("--u1", type=float, default=math.sqrt(2), show_default="sqrt 2", help="Largest gradient of a loss.")
@click.option("--u2", type=float, default=0.5, show_default=True, help="Largest curvature of a loss.")
@click.option("--classes", type=int, default=10, show_default=True, help="Of the softmax that ours is about.")
@DELTA
@JSON
def objective(rounds: int, u1: float, u2: float, classes: int, delta: float, as_json: bool, **numbers: Any) -> int:
    """Epsilon of Upcycled-FL's Theorem 6.3 for objective perturbation, and ours for exact minimisers of softmax."""
    each = objective_cost(**numbers, classes=classes)
    answer = {
        "epsilon": objective_epsilon(**numbers, rounds=rounds, u1=u1, u2=u2), "costs_pure": rounds * each,
        "costs": accounting.epsilon({Pure(each): rounds}, delta),
    }  # fmt: skip
    return show(answer, as_json)


@command.command("partitioning", epilog=TABLE_1)
@click.argument("kind", type=click.Choice(["poisson", "balanced", "split"]))
@click.option("--noise", type=float, help="Noise multiplier; or give --epsilon.")
@click.option("--epsilon", type=float, help="Find the noise multiplier that the paper's accounting asks for.")
@click.option("--steps", type=int, required=True)
@click.option(
    "--rate", type=float, default=1.0, show_default=True, help="poisson, split: how likely a sample is in a step."
)
@click.option("--uses", type=int, default=1, show_default=True, help="balanced: in how many steps a sample is used.")
@click.option("--parts", type=int, default=2, show_default=True, help="split: submodels.")
@click.option(
    "--unsplit-noise", type=float, help="split: noise of the unsplit tensors, as a multiple of the parts' noise."
)
@DELTA
@JSON
def partitioning(
    kind: str, noise: float | None, epsilon: float | None, steps: int, rate: float, uses: int, parts: int,
    unsplit_noise: float | None, delta: float, as_json: bool,
) -> int:  # fmt: skip
    """Epsilon of the partitioning paper's Theorems 3.4, 3.8 and 3.11 with bound (3), and the epsilon of ours."""
    if (noise is None) == (epsilon is None):
        invalid("--noise", noise, "give either --noise or --epsilon, not both")
    if unsplit_noise is not None and kind != "split":
        invalid("--unsplit-noise", unsplit_noise, f"{kind} has no unsplit tensors", 'use the kind "split"')

    def unsplit(z: float) -> float | None:
        return None if unsplit_noise is None else unsplit_noise * z

    theirs: Callable[[float], Array] = {
        "poisson": lambda z: poisson_moments(z, rate, steps),
        "balanced": lambda z: balanced_moments(z, steps, uses),
        "split": lambda z: split_moments(z, parts, rate, steps, unsplit(z)),
    }[kind]
    ours = {
        "poisson": lambda z: accounting.poisson(noise=z, rate=rate, steps=steps),
        "balanced": lambda z: accounting.balanced(noise=z, steps=steps, uses=uses),
        "split": lambda z: accounting.split(noise=z, parts=parts, rate=rate, steps=steps, unsplit_noise=unsplit(z)),
    }[kind]
    z = calibrate_published(theirs, epsilon=epsilon, delta=delta) if noise is None else noise
    answer = {"epsilon": classic_epsilon(theirs(z), delta), "costs": ours(z).epsilon(delta=delta)}
    return show(answer if noise is not None else {"noise": z} | answer, as_json)


@command.command("groups")
@click.option("--groups", "count", type=int, default=5, show_default=True, help="Groups of two workers along a string.")
@click.option("--period", type=int, default=5, show_default=True, help="S: epochs from one exchange to the next.")
@click.option("--epochs", type=int, required=True, help="t.")
@click.option("--noise", type=float, required=True, help="Noise multiplier, sigma.")
@click.option(
    "--rate",
    type=float,
    default=1.0,
    show_default=True,
    help="Probability that a worker takes part; Theorem 2 is for 1.",
)
@click.option("--distance", type=int, default=1, show_default=True, help="Groups between subject and observer, rho.")
@click.option("--clip-norm", type=float, default=1.0, show_default=True)
@click.option("--learning-rate", type=float, default=0.1, show_default=True)
@click.option("--smoothness", type=float, default=1.0, show_default=True, help="beta, of convex losses.")
@click.option("--local-steps", type=int, default=1, show_default=True, help="L.")
@DELTA
@JSON
def groups(count: int, period: int, epochs: int, noise: float, rate: float, distance: int, delta: float, as_json: bool,
           clip_norm: float, learning_rate: float, smoothness: float, local_steps: int) -> int:  # fmt: skip
    """Epsilon between two workers on a string: Theorem 1 with Lemma 3, Theorem 2, eqs. (21), (22), and ours for both."""
    from papers.groups.as_published import (
        ConvexTraining,
        as_published_count,
        as_published_degradation,
        as_published_plus,
        lemma_3_epsilon,
    )
    from sightline.errors import invalid
    from sightline.ledger.group_privacy import PairQuery, query_pairs
    from sightline.topology import STRUCTURES, constant_memberships

    if not 1 <= distance < count:
        invalid("--distance", distance, f"lies from 1 to {count - 1} for --groups {count}")
    releases = as_published_count(period, epochs, distance, releases_each=period)
    string = constant_memberships(count + 1, STRUCTURES["string"](count + 1, count))
    training = ConvexTraining(noise, clip_norm, learning_rate, smoothness, local_steps)
    pair = {"subject": 0, "observer": distance + 1}

    def convert(divergence: Callable[..., float]) -> float:
        """Return the least epsilon over the integer orders."""
        found = (
            divergence(string, period, epochs, training, **pair, order=float(a)) + math.log(1 / delta) / (a - 1)
            for a in range(2, 65)
        )
        return min(found)

    def account(plus: bool) -> float:
        """What the observer's models cost the subject in truth, DP-OGL or DP-OGL+."""
        query = PairQuery("string", epochs, noise, delta, count + 1, count, period, rate, plus=plus)
        result = query_pairs(query)
        subject, observer = (result.pairs.class_of[worker] for worker in pair.values())
        return float(result.matrix[subject, observer])

    answer = {
        "releases": float(releases), "theorem_1": lemma_3_epsilon(releases, rate=rate, noise=noise, delta=delta),
        "theorem_2": convert(as_published_degradation), "theorem_2_plus": convert(as_published_plus),
        "costs": account(plus=False),
    }  # fmt: skip
    if (epochs - 1) % period == 0:
        answer["costs_plus"] = account(plus=True)
    left_out = "" if rate == 1 else "Theorem 2 is for full participation: theorem_2 and theorem_2_plus ignore --rate"
    return show(answer, as_json, left_out)


if __name__ == "__main__":
    sys.exit(run_arguments(sys.argv[1:], command))
