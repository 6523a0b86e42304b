"""Figures 1, 2, 4 and 5 (e): mean epsilon over epochs, epsilon of every pair at t = 200. It is accounting: no training.

SIGHTLINE_DATA=... python -m papers.groups.figure4        # half a minute; label groups need MNIST, Fashion-MNIST
"""

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from papers.groups.as_published import lemma_3_epsilon
from sightline import engine
from sightline.apps.report.sections import draw_heatmap, mean_and_deviation
from sightline.config import parse
from sightline.ledger.group_privacy import PairQuery, query_pairs

HERE = Path(__file__).parent
EPOCHS = np.unique(np.concatenate([[1, 2, 3], np.arange(5, 201, 5)]))
OUTSIDERS = {"threat": "out-of-group"}
PLUS = {"plus": True, **OUTSIDERS}
FEW = 0.1
"""The other reading of "workers containing labels": only those that make up a tenth of what a worker has."""


def labels_file(source="mnist", share=0.0):
    """Label groups of a data set dealt by Dirichlet(.1) to 100 workers, as a membership file; None without data."""
    if not os.environ.get("SIGHTLINE_DATA"):
        return None
    plain = {
        "name": "labels", "rounds": 1, "model": {"name": "linear"}, "algorithm": {"name": "dp_ogl"},
        "data": {"source": source, "clients": 100, "partition": "dirichlet", "concentration": 0.1,
                 "train_samples": 20000, "test_samples": 1000},
        "topology": {"kind": "groups", "structure": "labels", "groups": 5, "label_share": share},
    }  # fmt: skip
    groups = engine.build_experiment(parse(plain)).topology.schedule.eras[0].groups
    path = Path(tempfile.mkdtemp()) / "labels.json"
    path.write_text(json.dumps({"workers": 100, "groups": groups}))
    return str(path)


def question(
    structure, groups, period, noise, *, plus=False, threat="everyone", accountant="rdp", bottleneck=False, workers=100
):
    named = {} if structure.endswith(".json") else {"workers": workers, "count": groups}
    return PairQuery(structure, 200, noise, 1e-5, **named, period=period, rate=0.7, plus=plus, threat=threat,
                    accountant=accountant, bottleneck=bottleneck)  # fmt: skip


def panels(labels):
    """Name -> question, as the paper's legend has them; then all but the label groups with noise 3."""
    found = {
        "(b) GL (1, 1)": question("global", 1, 1, 2.0),
        "(c) CL (4, 2)": question("clusters", 4, 2, 2.0),
        "(d) LB (5, 10)": question(labels, 5, 10, 3.0) if labels else None,
        "(e) RI (4, 10)": question("ring", 4, 10, 2.0),
        "(f) RI (4, 25)": question("ring", 4, 25, 2.0),
        "(g) RI (10, 10)": question("ring", 10, 10, 2.0),
        "(h) RI+ (4, 10)": question("ring", 4, 10, 2.0, **PLUS),
    }
    return {name: q for name, q in found.items() if q is not None}


def others(labels):
    """What is asked beside the paper's panels: noise 3 for all, outsiders of (e) alone, Figures 1 and 2."""
    found = {f"{name}, noise 3": replace(q, noise=3.0) for name, q in panels(labels).items() if "LB" not in name}
    found["(e) RI (4, 10), outsiders only"] = question("ring", 4, 10, 2.0, **OUTSIDERS)
    found["Figure 1 (a)"] = question("global", 1, 1, 2.0, workers=7)
    found["Figure 1 (b)"] = question("ring", 5, 10, 2.0, workers=7)
    found["Figure 2"] = replace(question("string", 2, 2, 2.0, workers=3), epochs=4)
    return found


def curves(labels, fashion, few=None):
    """Name -> question: (a), and Figure 5 (e), where only the label groups differ."""
    found = {
        "GL": question("global", 1, 1, 2.0),
        "CL (4, 2)": question("clusters", 4, 2, 2.0),
        "LB (5, 2), noise 3": question(labels, 5, 2, 3.0) if labels else None,
        "LB (5, 10), noise 3": question(labels, 5, 10, 3.0) if labels else None,
        "LB (5, 10), noise 3, a tenth": question(few, 5, 10, 3.0) if few else None,
        "LB (5, 10), noise 3, Fashion-MNIST": question(fashion, 5, 10, 3.0) if fashion else None,
        "RI (4, 2)": question("ring", 4, 2, 2.0),
        "RI (4, 10)": question("ring", 4, 10, 2.0),
        "RI (4, 2), outsiders only": question("ring", 4, 2, 2.0, **OUTSIDERS),
        "RI+ (4, 2)": question("ring", 4, 2, 2.0, **PLUS),
        "RI+ (4, 4)": question("ring", 4, 4, 2.0, **PLUS),
    }
    return {name: q for name, q in found.items() if q is not None}


def main():
    parser = argparse.ArgumentParser(prog="python -m papers.groups.figure4")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where numbers and pictures go")
    results = parser.parse_args().results
    results.mkdir(parents=True, exist_ok=True)
    labels = labels_file()
    table = {}
    draw_heatmaps(labels, table, results)
    for name, asked in others(labels).items():
        table[name] = describe_pairs(query_pairs(asked))
    draw_curves(labels, table, results)
    (results / "figure4.json").write_text(json.dumps(table, indent=1) + "\n")
    for name, row in table.items():
        print(name, row)


def draw_heatmaps(labels, table, results):
    figure = Figure(figsize=(17, 8), layout="constrained")
    places = figure.subplots(2, 4).ravel()
    for axes, (name, asked) in zip(places, panels(labels).items(), strict=False):
        answer = query_pairs(asked)
        draw_heatmap(axes, answer)
        axes.set_title(name)
        by_pld = query_pairs(replace(asked, accountant="pld"))
        exact = {"pld_mean": round(by_pld.mean, 2), "pld_max": round(by_pld.largest, 2)}
        table[name] = describe_pairs(answer) | exact
    for axes in places[len(panels(labels)) :]:
        axes.axis("off")
    figure.savefig(results / "figure4_heatmaps.png", dpi=110)


def describe_pairs(answer):
    """Epsilon by RDP: of the worst pairs, and of all kinds of pairs beside their releases."""
    there = ~np.isnan(answer.matrix)
    kinds = sorted(set(zip(answer.flow[1][there].tolist(), answer.matrix[there].round(2).tolist(), strict=True)))
    return {
        "rdp_mean": round(answer.mean, 2), "rdp_max": round(answer.largest, 2),
        "releases": [kind[0] for kind in kinds][-12:], "rdp_pairs": [kind[1] for kind in kinds][-12:],
        "rdp_least": min(kind[1] for kind in kinds),
    }  # fmt: skip


def mean_by_lemma_3(answer):
    """The mean over workers of the worst epsilon when a release costs what Lemma 3 says."""
    asked, there = answer.query, ~np.isnan(answer.matrix)
    worst = np.where(there, answer.flow[1], 0).max(1)[answer.pairs.class_of]
    costs = {int(k): lemma_3_epsilon(int(k), rate=asked.rate, noise=asked.noise, delta=asked.delta) for k in set(worst)}
    return float(np.mean([costs[int(releases)] for releases in worst]))


def draw_curves(labels, table, results):
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    for name, asked in curves(labels, labels_file("fashion_mnist"), labels_file(share=FEW)).items():
        answer = query_pairs(asked)
        mean, deviation = mean_and_deviation([answer.at(int(t)).worst for t in EPOCHS])
        (line,) = axes.plot(EPOCHS, mean, label=name)
        axes.fill_between(EPOCHS, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.15)
        table["(a) " + name] = {
            "t=200": [round(float(mean[-1]), 2), round(float(deviation[-1]), 2)],
            "pld": round(query_pairs(replace(asked, accountant="pld")).mean, 2),
            "lemma_3": round(mean_by_lemma_3(answer), 2),
        }
    axes.set(xlabel="epoch t", ylabel="mean over workers of the worst epsilon (RDP)", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(results / "figure4_curves.png", dpi=130)


if __name__ == "__main__":
    main()
