"""`python -m papers.convergence`: the convergence bounds that the papers state, for given constants."""

import json
import sys
from typing import Any

import click

from sightline.apps.cli.main import run_arguments

EXAMPLES = """
\b
Examples:
  python -m papers.convergence upcycled --L 0.1 --B 1.2 --mu 1 --rho 1 --K 100 --lambda 1
  python -m papers.convergence upcycled --L 0.1 --B 1.2 --mu 1 --rho 1 --K 100 --lambda 1 --rounds 80 --gap 2.3 --json
"""

TREE_EXAMPLES = """
\b
Examples:
  python -m papers.convergence h2fdp --beta 1 --G 1 --sigma 0.5 --zeta 0.5 --zeta-c 0.5 --rate 0.05
  python -m papers.convergence h2fdp --beta 1 --G 1 --sigma 0.5 --zeta 0.5 --zeta-c 0.5 --rate 0.05 --trusted 1 --json
"""


@click.group("convergence", epilog=EXAMPLES)
def command() -> None:
    """Convergence constants and bounds of published theorems. They are theorems about ideal runs, not measurements."""


@command.command("upcycled", epilog=EXAMPLES)
@click.option("--L", "smoothness", type=float, required=True, help="Smoothness of the local losses.")
@click.option("--B", "dissimilarity", type=float, required=True, help="Dissimilarity of the clients, 1 when equal.")
@click.option("--mu", type=float, required=True, help="Proximal term of FedProx.")
@click.option(
    "--rho", type=float, required=True, help="Strong convexity of the local objective with its proximal term."
)
@click.option("--K", "cohort", type=float, required=True, help="Clients per round.")
@click.option("--lambda", "weight", type=float, required=True, help="Penalty of the free step: u = mu / (mu + lambda).")
@click.option("--growth", type=float, default=0.0, help="lambda_m = lambda m^growth; 0.5 is Corollary 5.8.")
@click.option("--rounds", type=int, default=80, show_default=True, help="Real rounds M.")
@click.option("--gap", type=float, default=1.0, show_default=True, help="f(w_0) - f(w*).")
@click.option("--move", type=float, default=1.0, show_default=True, help="h: bound on how far a real round moves.")
@click.option("--gradient", type=float, default=1.0, show_default=True, help="d: bound on |grad f|.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def upcycled(
    smoothness: float, dissimilarity: float, mu: float, rho: float, cohort: float, weight: float,
    growth: float, rounds: int, gap: float, move: float, gradient: float, as_json: bool,
) -> int:  # fmt: skip
    """C1, C2, C3 of Upcycled-FedProx (eqs. 11-13) and the bound of Theorem 5.6 (Yin et al. 2024)."""
    from papers.theory.upcycled import upcycled_bound, upcycled_constants

    numbers = {"smoothness": smoothness, "dissimilarity": dissimilarity, "mu": mu, "rho": rho, "cohort": cohort}
    sequence = [upcycled_constants(**numbers, weight=weight * m**growth) for m in range(1, max(1, rounds) + 1)]
    found = sequence[0]
    bound = upcycled_bound(sequence, rounds=rounds, gap=gap, move=move, gradient=gradient)
    if as_json:
        shown = {"C1": found.c1, "C2": found.c2, "C3": found.c3, "u": mu / (mu + weight)}
        click.echo(json.dumps(shown | {"rounds": rounds, "converges": found.converges, "bound": bound}))
        return 0
    click.echo(f"C1     {found.c1:.6g}\nC2     {found.c2:.6g}\nC3     {found.c3:.6g}\nu      {mu / (mu + weight):.6g}")
    if bound is None:
        click.echo("bound  none: Theorem 5.6 needs C1 > 0 (a larger mu and rho, a larger K, a smaller L or B)")
    else:
        click.echo(f"bound  min over {rounds} rounds of |grad f|^2 <= {bound:.6g}")
    return 0


@command.command("h2fdp", epilog=TREE_EXAMPLES)
@click.option("--beta", type=float, required=True, help="Smoothness of the local losses.")
@click.option("--G", "clip_norm", type=float, required=True, help="Bound on every stochastic gradient.")
@click.option("--sigma", type=float, required=True, help="Noise of the stochastic gradients.")
@click.option("--zeta", type=float, required=True, help="Diversity between subnets.")
@click.option("--zeta-c", "within", type=float, required=True, help="Diversity within a subnet.")
@click.option("--rate", type=float, required=True, help="q: how likely a sample is in a step.")
@click.option("--subnets", type=int, default=10, show_default=True, help="N.")
@click.option("--devices", default="5", show_default=True, help="s_c of every subnet, or all sizes as 5,5,8.")
@click.option("--trusted", type=float, default=0.5, show_default=True, help="p_c: how likely an edge is trusted.")
@click.option("--tau", type=int, default=20, show_default=True, help="Local steps of an interval.")
@click.option("--local-aggregations", type=int, default=4, show_default=True, help="K_l of an interval.")
@click.option("--rounds", type=int, default=200, show_default=True, help="K_g: intervals.")
@click.option("--parameters", type=int, default=7840, show_default=True, help="M.")
@click.option("--epsilon", type=float, default=1.0, show_default=True)
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--gap", type=float, default=1.0, show_default=True, help="F(w_0) - F*; corrected: largest of the run.")
@click.option("--gamma", type=float, help="Step size gamma [default: the largest allowed].")
@click.option("--c2", type=float, help="Constant of Prop. 3.1 at trusted edges [default: the accountant's].")
@click.option("--v2", type=float, help="The same at devices [default: the accountant's].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def h2fdp(beta: float, sigma: float, zeta: float, subnets: int, devices: str, as_json: bool, **given: Any) -> int:
    """Theorem 4.3's bound on the mean squared gradient and its terms (Lin and Brinton 2024): as printed, and corrected.

    As printed the first term shrinks with the step size, which no descent does; the corrected one divides by it.
    The deviations are Lemma 4.1's: the largest in the first interval, of a device from its subnet and of a subnet from
    the global model.
    """
    from papers.theory.hierarchy import Hierarchy, corrected_terms, deviation_path, model_dispersion, published_terms

    sizes = _read_sizes(devices, subnets)
    tree = Hierarchy(smoothness=beta, sgd_noise=sigma, between=zeta, devices=sizes, **given)
    printed, right, (b1, b2) = published_terms(tree), corrected_terms(tree), model_dispersion(tree)
    shown = {
        "a1": printed.a1, "a2": printed.a2, "b": printed.b, "bound": printed.bound,
        "a1_corrected": right.a1, "a2_corrected": right.a2, "bound_corrected": right.bound,
        "B1_squared": b1, "B2_squared": b2, "gamma": tree.step, "c2": tree.at_edges, "v2": tree.at_devices,
        "device_deviation": max((device for device, _ in deviation_path(tree)), default=0.0),
        "subnet_deviation": max((subnet for _, subnet in deviation_path(tree)), default=0.0),
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(shown))
        return 0
    for name, value in shown.items():
        click.echo(f"{name:<18}{value:.6g}")
    return 0


def _read_sizes(text: str, subnets: int) -> tuple[float, ...]:
    from sightline.errors import invalid

    try:
        sizes = tuple(float(word) for word in text.split(","))
    except ValueError:
        invalid("--devices", text, "is one size, or all of them", "e.g. 5 or 5,5,8")
    if subnets < 1:
        invalid("--subnets", subnets, "is a whole number from 1")
    if len(sizes) not in (1, subnets):
        invalid("--devices", text, f"names {len(sizes)} sizes for --subnets {subnets}", "give one, or all of them")
    return sizes if len(sizes) == subnets else sizes * subnets


CLUSTERED = """
\b
Examples:
  python -m papers.convergence clustered --samples 8000 --batch 8000 --parameters 28938 --clip-norm 1 --noise 1.9 --eta 0.005
  python -m papers.convergence clustered --samples 8000 --batch 32 --parameters 28938 --clip-norm 1 --noise 1.3 --eta 0.005 \\
      --distance 0.3 --larger 250 --rho 1.5 --json
"""


@command.command("clustered", epilog=CLUSTERED)
@click.option("--samples", type=int, required=True, help="N: training examples of a client.")
@click.option("--batch", "batch_size", type=int, required=True, help="b: batch size of the round.")
@click.option("--parameters", type=int, required=True, help="p: parameters of the model.")
@click.option("--clip-norm", type=float, required=True, help="c: clip norm of an example's gradient.")
@click.option("--noise", "noise_multiplier", type=float, required=True, help="z: noise multiplier.")
@click.option("--eta", "learning_rate", type=float, required=True, help="Step size.")
@click.option("--epochs", type=int, default=1, show_default=True, help="K: local epochs.")
@click.option("--distance", type=float, help="Delta: distance between two clusters' centres; gives their overlap.")
@click.option("--larger", "factor", type=float, help="k: a first batch k times as large, with --distance.")
@click.option("--rho", "noise_ratio", type=float, default=1.0, show_default=True, help="z(k b) <= rho z(b).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def clustered(distance: float | None, factor: float | None, noise_ratio: float, as_json: bool, **setting: float) -> int:
    """Noise of a client's update (Lemma 4.1) and overlap of two clusters (Lemma 4.2) in R-DPCFL's first round."""
    from papers.theory import clustered as theory
    from sightline.errors import invalid

    if factor is not None and distance is None:
        invalid("larger", factor, "an overlap needs a distance", "give --distance")
    noise = theory.update_noise(**setting)  # type: ignore[arg-type]
    shown: dict[str, float] = {"steps": noise.steps, "variance": noise.variance, "radius": noise.radius}
    shown["distance_for_mss_2"] = 4 * noise.radius
    if distance is not None:
        shown |= {
            "mss": theory.expected_separation(noise, distance),
            "overlap": theory.component_overlap(noise, distance),
        }
    if factor is not None and distance is not None:
        larger = theory.overlap_of_larger_batch(noise, distance, factor=factor, noise_ratio=noise_ratio)
        shown["overlap_of_larger_batch"] = larger
    click.echo(json.dumps(shown) if as_json else "\n".join(f"{name:24} {value:.6g}" for name, value in shown.items()))
    return 0


if __name__ == "__main__":
    sys.exit(run_arguments(sys.argv[1:], command))
