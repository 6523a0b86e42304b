"""`python -m papers.correlated`: run what is missing, then write results.json and the figure of the docs.

Needs MNIST and EMNIST letters in the folder that SIGHTLINE_DATA names (`sightline datasets`). Broken off, it goes on
where it stopped.
"""

import argparse
import json
from pathlib import Path

from papers.correlated.figure import draw_figure
from papers.correlated.runs import DELTA, list_cells, list_finals, list_picks, summarise_arms, train_run
from papers.jobs import LINES, read, run_jobs

HERE = Path(__file__).parent
FIGURE = HERE.parents[1] / "docs" / "images" / "correlated-noise.svg"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.correlated", description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--draw-only", action="store_true", help="run nothing, draw what was run")
    given = parser.parse_args()
    lines = HERE / LINES
    if not given.draw_only:
        for data, epsilon in list_cells():
            title = f"{data}, epsilon {epsilon:g}"
            picks = list_picks(data, epsilon)
            run_jobs(picks, lines, work=train_run, workers=given.workers, title=f"clip norms of {title}")
            finals = list_finals(read(lines), data, epsilon)
            run_jobs(finals, lines, work=train_run, workers=given.workers, title=title)
    arms = summarise_arms(read(lines))
    (HERE / "results.json").write_text(json.dumps({"delta": DELTA, "arms": arms}, indent=1) + "\n", encoding="utf-8")
    draw_figure(arms, FIGURE)
    for arm in arms:
        print(
            f"{arm['data']:15} epsilon {arm['epsilon']}  {arm['arm']:12} {100 * arm['accuracy']:.1f} %  {arm['seeds']}"
        )


if __name__ == "__main__":
    main()
