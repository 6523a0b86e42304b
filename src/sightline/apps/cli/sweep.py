"""`sightline sweep`: every combination of some settings and seeds, side by side, then one table."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sightline.apps.cli.main import end_words
from sightline.errors import printable

if TYPE_CHECKING:
    from sightline.apps.sweep import SweepJob, Swept


SWEEP_EXAMPLES = """
\b
Examples:
  sightline sweep examples/quickstart.toml --over algorithm.name=fedavg,fedprox --seeds 4
  sightline sweep examples/quickstart.toml --over privacy.epsilon=2,4,8 --over privacy.clip_norm=0.5,1 --workers 2
  sightline sweep examples/quickstart.toml --over 'model.hidden=[64],[64,32]' --set rounds=10 --figure sweep.png

The same command goes on with a sweep that was interrupted; more values or more seeds add to it.
Exit codes: 0 all done, 1 some failed, 2 bad input, 130 interrupted (by SIGTERM 143, by SIGHUP 129).
"""


@click.command("sweep", epilog=SWEEP_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--over", multiple=True, metavar="KEY=V,V", help="Values of one key; several --over are combined.")
@click.option("--seeds", type=int, help="Number of seeds of every combination, from the file's own upwards.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key in every run.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: runs/NAME-sweep).")
@click.option("--workers", type=int, help="Runs at a time (default: one per core).")
@click.option("--figure", type=click.Path(path_type=Path), help="Also draw it to this .html, .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def sweep_command(
    config: Path, over: tuple[str, ...], seeds: int | None, overrides: tuple[str, ...], out: Path | None,
    workers: int | None, figure: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Run CONFIG with every combination of the values given, and set the results side by side."""
    from sightline.apps.report.comparison import check_figure
    from sightline.apps.sweep import list_jobs, run_sweep
    from sightline.config import read
    from sightline.console import SweepBar

    # Checked before hours of runs, not after them.
    if figure is not None:
        check_figure(figure)
    out = out or Path("runs") / f"{read(config, overrides).name}-sweep"
    planned = list_jobs(config, over=over, seeds=seeds, given=overrides, out=out)
    rounds = sum(job.experiment.rounds for job in planned if job.experiment)
    with SweepBar(out.name, len(planned), rounds) as bar:
        swept = run_sweep(planned, workers=workers, on_message=lambda job, message: bar.take(job.name, message))
    return conclude_sweep(planned, swept, out, figure, as_json)


def conclude_sweep(planned: "list[SweepJob]", swept: "Swept", out: Path, figure: Path | None, as_json: bool) -> int:
    """Print the table of the finished runs and a line for every other one; write the page and return the exit code."""
    from sightline.apps.sweep.sweep import done_directories
    from sightline.errors import InvalidInput

    done = done_directories(swept, planned)
    for job, reason in swept.failed:
        click.echo(f"sightline: failed: {printable(f'{job.name}: {reason}')}", err=True)
    if not done and not swept.interrupted:
        raise InvalidInput(f"sweep={out}: none of its {len(planned)} runs could be done; the reasons stand above")
    # What is done is shown even if other jobs failed: the same command continues later.
    if done or as_json:
        _print_sweep(planned, swept, done, out, figure, as_json)
    if swept.interrupted:
        left = len(planned) - len(done) - len(swept.failed)
        click.echo(f"sightline: {end_words()}; {left} of {len(planned)} runs left, the same command goes on", err=True)
    return 130 if swept.interrupted else 1 if swept.failed else 0


def _print_sweep(
    planned: "list[SweepJob]", swept: "Swept", done: list[Path], out: Path, figure: Path | None, as_json: bool
) -> None:
    from sightline.apps.cli.report import print_comparison
    from sightline.apps.report.comparison import compare_runs, draw_comparison

    comparison = compare_runs(done)
    page = figure or out / "sweep.html"
    if done:
        draw_comparison(comparison, page, title=out.name)
    failed = [{"settings": list(job.words), "reason": reason} for job, reason in swept.failed]
    about = {"out": str(out), "planned": len(planned), "done": len(done), "done_before": swept.before}
    drawn = page if done else None
    print_comparison(comparison, as_json, drawn, **about, failed=failed, interrupted=swept.interrupted)
