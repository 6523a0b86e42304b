"""Draw Figures 1 to 8 of the partitioning paper with our curve added.

python -m papers.partitioning.figures.draw [FIGURE ...] [--results DIR]
"""

import argparse
import json
from pathlib import Path

import numpy as np

from papers.partitioning.figures.curves import (
    balanced_epsilons,
    deltas_over_steps,
    divergences,
    split_epsilons,
    split_noises,
)

COLOURS = {2: "#c1432e", 4: "#d98e04", 6: "#2b7a4b", 8: "#2f5fa8"}


def pyplot():
    """matplotlib, imported when a figure is drawn."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def split_panel(axes, steps, rate, delta, noises):
    """Epsilon over noise for 2, 4, 6, 8 parts: dashed the paper's bound, solid ours."""
    for parts, colour in COLOURS.items():
        baseline, paper, ours = split_epsilons(noises, parts, rate, steps, delta)
        if parts == 2:
            axes.plot(noises, baseline, color="#555555", label="no amplification")
        axes.plot(noises, paper, "--", color=colour, label=f"{parts} parts, paper")
        axes.plot(noises, ours, color=colour, label=f"{parts} parts, ours")
    axes.set(xlabel="noise multiplier", ylabel=r"$\epsilon$", title=f"T={steps}, rate {rate}, delta {delta:g}")
    axes.set_yscale("log")


def noise_panel(axes, epsilon, delta, rate, counts):
    """Noise over iterations at a fixed budget."""
    for parts, colour in COLOURS.items():
        baseline, paper, ours = split_noises(counts, parts, rate, epsilon, delta)
        if parts == 2:
            axes.plot(counts, baseline, color="#555555", label="no amplification")
        axes.plot(counts, paper, "--", color=colour, label=f"{parts} parts, paper")
        axes.plot(counts, ours, color=colour, label=f"{parts} parts, ours")
    title = f"epsilon {epsilon}, delta {delta:g}, rate {rate}"
    axes.set(xlabel="iterations", ylabel="noise multiplier", title=title)


def order_panel(axes, steps, uses, noise, most=60):
    """Renyi divergence over the order."""
    orders = np.arange(2, most + 1)
    poisson, paper, ours = divergences(steps, uses, noise, orders)
    axes.plot(orders, poisson, color="#555555", label="Poisson")
    axes.plot(orders, paper, "--", color=COLOURS[2], label="balanced, bound (3)")
    axes.plot(orders, ours, color=COLOURS[8], label="balanced, ours")
    axes.set(xlabel=r"order $\alpha$", ylabel=r"$\epsilon(\alpha)$", title=f"T={steps}, k={uses}, noise {noise:g}")


def balanced_panel(axes, steps, uses, delta, noises):
    """Epsilon over noise for Poisson and balanced sampling."""
    poisson, paper, law, ours = balanced_epsilons(noises, steps, uses, delta)
    axes.plot(noises, poisson, color="#999999", label="Poisson, moments")
    axes.plot(noises, paper, "--", color=COLOURS[2], label="balanced, bound (3)")
    axes.plot(noises, law, color="#555555", label="Poisson, law")
    axes.plot(noises, ours, color=COLOURS[8], label="balanced, ours")
    axes.set(xlabel="noise multiplier", ylabel=r"$\epsilon$", title=f"T={steps}, k={uses}, delta {delta:g}")
    axes.set_yscale("log")


def delta_panel(axes):
    """delta over T at epsilon 10, rate .4, noise 2."""
    counts = list(range(20, 101, 10))
    for name, values in deltas_over_steps(counts, 0.4, 2.0, 10.0).items():
        style = "-" if name == "ours" else "--"
        axes.plot(counts, values, style, label=name, linewidth=2 if name == "ours" else 1.2)
    axes.axhline(1e-5, color="black", linestyle=":", linewidth=0.8)
    axes.set(xlabel="T", ylabel=r"$\delta$", title="epsilon 10, k/T 0.4, noise 2", yscale="log")


FIGURES = {
    1: [lambda a: split_panel(a, 1200, 0.1, 1e-5, np.linspace(0.8, 3.0, 10))],
    2: [lambda a: order_panel(a, 1000, 100, 2.0, 20)],
    3: [lambda a: order_panel(a, 10, 4, 2.0)],
    4: [delta_panel],
    5: [
        lambda a: split_panel(a, 400, 0.1, 1e-5, np.linspace(0.7, 2.5, 9)),
        lambda a: split_panel(a, 2000, 0.1, 1e-5, np.linspace(0.9, 3.5, 9)),
        lambda a: split_panel(a, 1500, 0.08, 1e-6, np.linspace(0.8, 3.0, 9)),
        lambda a: split_panel(a, 600, 0.15, 1e-5, np.linspace(0.9, 3.5, 9)),
    ],
    6: [
        lambda a: noise_panel(a, 1.0, 1e-5, 0.1, [100, 400, 1000, 2000]),
        lambda a: noise_panel(a, 3.0, 1e-5, 0.1, [100, 400, 1000, 2000]),
        lambda a: noise_panel(a, 5.0, 1e-6, 0.15, [100, 400, 1000, 2000]),
        lambda a: noise_panel(a, 8.0, 1e-6, 0.3, [100, 400, 1000, 2000]),
    ],
    7: [lambda a: order_panel(a, 1000, 100, 2.0), lambda a: order_panel(a, 200, 100, 4.0)],
    8: [
        lambda a: balanced_panel(a, 10, 5, 1e-6, np.linspace(1.0, 6.0, 12)),
        lambda a: balanced_panel(a, 1500, 120, 1e-4, np.linspace(1.0, 6.0, 12)),
    ],
}


def draw(number, folder):
    """One figure as a PNG file, and its numbers beside it."""
    plt = pyplot()
    panels = FIGURES[number]
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    figure, axes = plt.subplots(rows, columns, figsize=(6.4 * columns, 4.4 * rows), squeeze=False)
    for panel, place in zip(panels, axes.ravel(), strict=True):
        panel(place)
        place.grid(alpha=0.25)
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(f"Figure {number} of the partitioning paper, with our accountant")
    figure.tight_layout()
    (folder / f"figure_{number}.json").write_text(numbers(axes.ravel()), encoding="utf-8")
    path = folder / f"figure_{number}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def numbers(panels):
    """What was drawn: panel by panel, label -> [x, y]; a line without a label is a guide."""
    drawn = [
        {
            line.get_label(): [
                [float(f"{value:.5g}") for value in axis] for axis in (line.get_xdata(), line.get_ydata())
            ]
            for line in panel.lines
            if not line.get_label().startswith("_")
        }
        for panel in panels
    ]
    return json.dumps(drawn, indent=1) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="python -m papers.partitioning.figures.draw", description=__doc__)
    parser.add_argument("figures", type=int, nargs="*", metavar="FIGURE", help="1 to 8 (default: all)")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent, help="where the pictures go")
    given = parser.parse_args()
    unknown = [number for number in given.figures if number not in FIGURES]
    if unknown:
        parser.error(f"no such figure: {unknown[0]}; known: 1 to 8")
    given.results.mkdir(parents=True, exist_ok=True)
    for number in given.figures or FIGURES:
        print(draw(number, given.results), flush=True)


if __name__ == "__main__":
    main()
