"""`sightline convergence`: what the theory of an algorithm promises for given constants."""

import json

import click

EXAMPLES = """
\b
Examples:
  sightline convergence upcycled --L 0.1 --B 1.2 --mu 1 --rho 1 --K 100 --lambda 1
  sightline convergence upcycled --L 0.1 --B 1.2 --mu 1 --rho 1 --K 100 --lambda 1 --rounds 80 --gap 2.3 --json
"""


@click.group("convergence")
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
@click.option("--rounds", type=int, default=80, show_default=True, help="Real rounds M.")
@click.option("--gap", type=float, default=1.0, show_default=True, help="f(w_0) - f(w*).")
@click.option("--move", type=float, default=1.0, show_default=True, help="h: bound on how far a real round moves.")
@click.option("--gradient", type=float, default=1.0, show_default=True, help="d: bound on |grad f|.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def upcycled(
    smoothness: float, dissimilarity: float, mu: float, rho: float, cohort: float, weight: float, rounds: int,
    gap: float, move: float, gradient: float, as_json: bool,
) -> int:  # fmt: skip
    """C1, C2, C3 of Upcycled-FedProx (eqs. 11-13) and the bound of Theorem 5.6 (Yin et al. 2024)."""
    from sightline.algorithms.theory_upcycled import upcycled_bound, upcycled_constants

    found = upcycled_constants(
        smoothness=smoothness, dissimilarity=dissimilarity, mu=mu, rho=rho, cohort=cohort, weight=weight
    )
    bound = upcycled_bound(found, rounds=rounds, gap=gap, move=move, gradient=gradient)
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
