"""The comparison as a figure: a page that needs nothing but itself, or a picture."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import invalid
from sightline.report.comparison import Comparison
from sightline.report.comparison_charts import AGAINST, Against, comparison_charts, group_course
from sightline.report.comparison_notes import comparison_notes
from sightline.report.comparison_plain import comparison_table
from sightline.report.disk import write_whole
from sightline.report.page import render_page
from sightline.report.section import Content, Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = ("png", "svg", "pdf")
COLOURS = ("#1f6fb2", "#c4570c", "#0b8068", "#8a4fa3", "#7a6a00", "#b03060")


def comparison_content(comparison: Comparison) -> Content:
    """What `comparison.html` shows."""
    header, rows = comparison_table(comparison)
    several = any(len(group.runs) > 1 for group in comparison.groups)
    return {
        "header": header,
        "rows": rows,
        "charts": comparison_charts(comparison),
        "notes": comparison_notes(comparison),
        "spread": "± is one standard deviation over the runs of a row; bands likewise." if several else "",
    }


def draw_comparison(comparison: Comparison, path: Path, title: str = "Comparison") -> None:
    """Write the figure: by the file's ending a page (.html) or a picture (.png, .svg, .pdf)."""
    kind = check_figure(path)
    try:
        if kind == "html":
            write_whole(path, render_page(title, [(Frame("comparison", title), comparison_content(comparison))]))
        else:
            _draw_picture(comparison, path, kind)
    except OSError as error:
        invalid("--figure", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def check_figure(path: Path) -> str:
    """The kind of figure that a path asks for, before anything long is begun for it."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*PICTURES, "html"):
        invalid("--figure", path, "the ending says which figure", "use .html, .png, .svg or .pdf")
    if kind != "html" and find_spec("matplotlib") is None:
        invalid("--figure", path, "pictures need matplotlib", 'use .html, or pip install "sightline[figures]"')
    if not path.parent.is_dir():
        invalid("--figure", path, "there is no such folder", "give a file in a folder that exists")
    return kind


def _draw_picture(comparison: Comparison, path: Path, kind: str) -> None:
    from matplotlib.figure import Figure

    shown = [against for against in AGAINST if any(group_course(group, against).x for group in comparison.groups)]
    if not shown:
        invalid("--figure", path, "no run has an evaluated round yet", "wait for the first")
    across = min(len(shown), 2 if len(shown) == 4 else 3)
    down = -(-len(shown) // across)
    figure = Figure(figsize=(4.8 * across, 3.4 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, against in zip(panels, shown, strict=False):
        _draw_panel(axes, comparison, against)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    figure.savefig(path, dpi=150, format=kind)


def _draw_panel(axes: "Axes", comparison: Comparison, against: Against) -> None:
    for number, group in enumerate(comparison.groups):
        one, colour = group_course(group, against), COLOURS[number % len(COLOURS)]
        axes.plot(one.x, [100 * mean for mean in one.mean], color=colour, label=group.label)
        edges = [(x, m, d) for x, m, d in zip(one.x, one.mean, one.deviation, strict=True) if d is not None]
        if edges:
            x, low, high = zip(*((x, 100 * (m - d), 100 * (m + d)) for x, m, d in edges), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.set(xlabel=against.axis.label, ylabel="accuracy, %")
    axes.xaxis.set_major_formatter(lambda value, _: against.axis.tick(value))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3)
