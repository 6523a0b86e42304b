"""Where the bottleneck bound wins: epsilon against a worker of the opposite group, by period and by overlap.

python -m papers.groups.bottleneck        # a few seconds
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from sightline.accounting import Accountant
from sightline.events import Gaussian, Poisson
from sightline.ledger import GroupPlan, Threat, planned_pairs
from sightline.ledger.group_pairs import Costing, epsilon_matrix
from sightline.ledger.group_privacy import Bottleneck
from sightline.topology import constant_memberships

HERE = Path(__file__).parent
PERIODS = [1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100]
OVERLAPS = [1, 2, 4, 8]
COSTING = Costing(1e-5, Accountant.PLD)


def thick_ring(workers, groups, overlap):
    """A ring whose neighbours share `overlap` workers."""
    size = workers // groups
    return tuple(
        tuple(sorted((m * size + n) % workers for n in range(size + overlap))) for m in range(groups)
    )  # fmt: skip


def pair(period, overlap, rate, noise=3.0):
    """(flow, least) epsilon of a worker of one group alone against one of the opposite group."""
    event = Gaussian(noise) if rate == 1 else Poisson(rate, Gaussian(noise))
    pairs = planned_pairs(GroupPlan(constant_memberships(100, thick_ring(100, 4, overlap)), period, 201, (event,) * 4))
    subject, observer = pairs.class_of[15], pairs.class_of[65]
    flow, _ = epsilon_matrix(pairs, Threat.EVERYONE, COSTING)
    bound = Bottleneck(pairs).epsilon(int(subject), int(observer), COSTING)
    return float(flow[subject, observer]), min(float(flow[subject, observer]), bound)


def main():
    parser = argparse.ArgumentParser(prog="python -m papers.groups.bottleneck")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where numbers and pictures go")
    results = parser.parse_args().results
    results.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    table = []
    for axes, rate in zip(panels, (1.0, 0.7), strict=True):
        axes.plot(PERIODS, [pair(period, 1, rate)[0] for period in PERIODS], "k--", label="flow count")
        for overlap in OVERLAPS:
            values = [pair(period, overlap, rate) for period in PERIODS]
            axes.plot(PERIODS, [least for _, least in values], "o-", ms=3, label=f"least, {overlap} shared")
            table += [
                {"rate": rate, "shared": overlap, "period": period, "flow": round(f, 3), "least": round(least, 3)}
                for period, (f, least) in zip(PERIODS, values, strict=True)
            ]
        axes.set(xscale="log", xlabel="period S", title=f"rate {rate:g}, noise 3, 200 rounds, opposite group")
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("epsilon at delta = 1e-5 (PLD)")
    panels[0].legend(frameon=False)
    figure.savefig(results / "bottleneck.png", dpi=130)
    (results / "bottleneck.json").write_text(json.dumps(table, indent=1) + "\n")
    for row in table:
        if row["least"] < row["flow"]:
            print(row)


if __name__ == "__main__":
    main()
