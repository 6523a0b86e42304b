"""Figure 3 (a), (b) scaled: personal accuracy of four group structures and DP-OGL+ on MNIST and Fashion-MNIST.

SIGHTLINE_DATA=... python experiments/groups/figure3.py            # all runs; half an hour on two busy cores
SIGHTLINE_DATA=... python experiments/groups/figure3.py --plot     # only draw results/figure3.json again
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import sightline
from sightline.config import parse

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "figure3.json"
METRICS = [
    "test_accuracy",
    "client_accuracy_worst",
    "client_train_loss_mean",
    "group_accuracy_worst",
    "group_accuracy_best",
]

# name: (algorithm, structure, groups, period, noise multiplier)
CURVES = {
    "GL": ("dp_ogl", "global", 1, 1, 2.0),
    "CL": ("dp_ogl", "clusters", 4, 2, 2.0),
    "LB": ("dp_ogl", "labels", 5, 10, 3.0),
    "RI": ("dp_ogl", "ring", 4, 10, 2.0),
    "RI+": ("dp_ogl_plus", "ring", 4, 2, 2.0),
}
EPOCHS = 60


def experiment(source, curve, *, private, seed):
    algorithm, structure, groups, period, noise = CURVES[curve]
    topology = {"kind": "groups", "structure": structure, "groups": groups, "period": period}
    if structure == "labels":
        topology["label_share"] = 0.1
    privacy = {"unit": "client", "noise_multiplier": noise, "clip_norm": 0.25} if private else {"unit": "none"}
    return {
        "name": "figure3",
        "seed": seed,
        "rounds": EPOCHS,
        "evaluate_every": 10,
        "data": {"source": source, "clients": 100, "partition": "dirichlet", "concentration": 0.1,
                 "train_samples": 20000, "test_samples": 10000},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"steps": 10, "batch_size": 64, "learning_rate": 0.05},
        "topology": topology,
        "algorithm": {"name": algorithm},
        "sampling": {"clients": {"scheme": "poisson", "rate": 0.7}},
        "privacy": privacy,
    }  # fmt: skip


def measured(source, curve, *, private, seed):
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = sightline.run(
            parse(experiment(source, curve, private=private, seed=seed)), out=Path(folder) / "run", progress=False
        )
        rows = [row for row in run.rounds if row.get("test_accuracy") is not None]
        summary = run.summary
    return {
        "source": source, "curve": curve, "private": private, "seed": seed,
        "epochs": [row["round"] for row in rows],
        **{name: [row[name] for row in rows] for name in METRICS},
        "epsilon": summary["observers"], "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--plot", action="store_true")
    given = parser.parse_args()
    if not given.plot:
        runs = []
        for seed in range(given.seeds):
            for source in ("mnist", "fashion_mnist"):
                for curve in CURVES:
                    for private in (True, False) if seed == 0 else (True,):
                        runs.append(measured(source, curve, private=private, seed=seed))
                        last = runs[-1]
                        print(
                            source,
                            curve,
                            "private" if private else "clear",
                            seed,
                            f"accuracy {last['test_accuracy'][-1]:.3f}",
                            last["epsilon"],
                            last["seconds"],
                            flush=True,
                        )
                        RESULTS.write_text(json.dumps(runs, indent=1) + "\n")  # fmt: skip
    draw(json.loads(RESULTS.read_text()))


def draw(runs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    for row, source in enumerate(("mnist", "fashion_mnist")):
        for column, (metric, word) in enumerate(
            (("client_train_loss_mean", "mean training loss"), ("test_accuracy", "mean test accuracy"))
        ):
            axes = panels[row][column]
            for number, curve in enumerate(CURVES):
                for private, style in ((True, "-o"), (False, ":")):
                    same = [r for r in runs if (r["source"], r["curve"], r["private"]) == (source, curve, private)]
                    if same:
                        values = [statistics.fmean(v) for v in zip(*(r[metric] for r in same), strict=True)]
                        label = curve if private else None
                        axes.plot(same[0]["epochs"], values, style, color=f"C{number}", label=label, ms=3)
            axes.set(title=f"{source}: {word}", xlabel="epoch" if row else None)
            axes.grid(alpha=0.3)
    panels[0][1].legend(frameon=False, title="dotted: no noise")
    figure.savefig(HERE / "results" / "figure3.png", dpi=130)


if __name__ == "__main__":
    main()
