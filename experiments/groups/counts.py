"""What the DP-OGL paper claims of epsilon (Figures 2, 4 and 5 (e)), and what the accountant finds: figure4.json."""

from collections.abc import Iterator
from typing import Any

from experiments.claims import Claim, judged

COMMAND = "python -m experiments.groups.figure4"
LABELS = "LB (5, 10), noise 3"
Counted = dict[str, Any]

EXAMPLE = Claim(
    "Figure 2, Example 2", "{3e, 2e; 5e, 5e; 2e, 3e}", "at most 5 releases (epsilon 3.742), across groups 2 (2.335)",
    "reproduced", "sightline run experiments/groups/figure2.toml",
)  # fmt: skip
"""Three workers, two groups: `tests/docs/test_figures.py` runs it."""


def mean_of(counted: Counted, name: str) -> float | None:
    """The last point of a curve of (a); None without the data that its groups are made of."""
    return counted[f"(a) {name}"]["t=200"][0] if f"(a) {name}" in counted else None


def claim(result: str, paper: str, here: str, verdict: str) -> Claim:
    """All of them are made by one command."""
    return Claim(result, paper, here, verdict, COMMAND)


def curves(counted: Counted) -> Iterator[Claim]:
    """Figures 4 (a) and 5 (e): the mean over workers."""
    one, clusters, ring = (mean_of(counted, name) or 0.0 for name in ("GL", "CL (4, 2)", "RI (4, 10)"))
    here = f"GL {one:.1f}, CL {clusters:.1f}, RI {ring:.1f}"
    close = judged(one == clusters <= ring < 1.1 * one)
    yield claim("Figure 4 (a)", "GL and CL have the least mean bound, RI follows closely", here, close)
    labels = mean_of(counted, LABELS)
    if labels is not None:
        here = f"mean {labels:.1f}, largest {counted['(d) LB (5, 10)']['rdp_max']:.1f}"
        verdict = "reproduced" if labels > ring else "the largest is, the mean is not"
        yield claim("Figure 4 (a), (d)", "LB is weaker in spite of noise 3, because of its overlaps", here, verdict)
    words = "DP-OGL+ (S = 2) cuts the outsiders' mean bound by at least 40%"
    yield cut(counted, "RI (4, 2), outsiders only", "RI+ (4, 2)", words, 40)
    yield cut(counted, "RI+ (4, 2)", "RI+ (4, 4)", "S = 2 to 4 cuts it by about 40% more", 38)
    fashion = mean_of(counted, f"{LABELS}, Fashion-MNIST")
    if fashion is not None and labels is not None:
        here = f"labels {fashion:.1f} against {labels:.1f} on MNIST"
        words = "as Figure 4 (a), the label groups slightly different"
        yield claim("Figure 5 (e)", words, here, judged(abs(fashion - labels) < 0.2 * labels))


def cut(counted: Counted, first: str, second: str, words: str, least: float) -> Claim:
    """By how much one curve ends below another."""
    before, after = (mean_of(counted, name) or 0.0 for name in (first, second))
    percent = 100 * (1 - after / before)
    verdict = "reproduced" if percent >= least else "nearly" if percent >= least - 5 else "not reproduced"
    return claim("Figure 4 (a)", words, f"{before:.2f} -> {after:.2f}: {percent:.0f}%", verdict)


def heatmaps(counted: Counted) -> Iterator[Claim]:
    """Figure 4 (b) to (h): pairs."""
    one, clusters, ring, slow, plus = (
        counted[name]
        for name in ("(b) GL (1, 1)", "(c) CL (4, 2)", "(e) RI (4, 10)", "(f) RI (4, 25)", "(h) RI+ (4, 10)")
    )
    same = one["rdp_pairs"]
    here = ", ".join(map(str, same))
    yield claim("Figure 4 (b)", "one group: all pairs alike", here, judged(len(same) == 1))
    apart = min(clusters["rdp_pairs"])
    yield claim("Figure 4 (c)", "nothing flows between clusters", f"{apart:g}", judged(apart == 0))
    near, far = min(ring["rdp_pairs"]), min(slow["rdp_pairs"])
    here = f"opposite group, M = 4: S = 10 {near:.1f}, S = 25 {far:.1f}"
    yield claim("Figure 4 (e), (f), (g)", "longer periods darken distant cells", here, judged(far < near))
    here = f"{ring['rdp_max']:.1f} against {one['rdp_max']:.1f}"
    slightly = ring["rdp_max"] < 1.2 * one["rdp_max"]
    words = 'workers of two groups are worst ("slightly exceed the baseline")'
    yield claim("Figure 4 (e)", words, here, "reproduced" if slightly else "worst, and more than slightly")
    share = plus["rdp_mean"] / ring["rdp_mean"]
    here = (
        f"{ring['rdp_mean']:.1f} -> {plus['rdp_mean']:.1f}: {share:.2f}; the counts do, epsilon is not linear in them"
    )
    verdict = "reproduced" if share < 0.15 else "not for epsilon"
    yield claim("Figure 4 (h)", "DP-OGL+ scales outsiders' bounds down by about 1/S = 0.1", here, verdict)
    most = max(panel["rdp_max"] for name, panel in counted.items() if "rdp_max" in panel)
    yield claim("Figure 4, colours", "0 to 30", f"up to {most:.0f}", judged(most <= 30))
