"""Notebooks display runs, ledgers, schemes and curves: escaped, well formed, bounds never rounded down."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import sightline
from sightline import accounting
from sightline import formatting as shown
from sightline.events import Adjacency, Clear, Gaussian, Poisson, Product, Unit
from sightline.ledger import Ledger, Release

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('1')</script>&\""


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{text}</div>")


def cells(text: str) -> list[str]:
    return ["".join(cell.itertext()) for cell in parsed(text).iter("td")]


@pytest.mark.parametrize("value", [0.0, 1e-9, 7.9930001, 7.993, 8.0, 1 / 3, 1234567.0004])
def test_a_bound_is_never_shown_smaller(value):
    assert value <= float(shown.rounded_up(value)) <= value + 0.00100001


def test_a_run_links_its_report_and_shows_its_numbers(tmp_path):
    run = sightline.run(ROOT / "examples" / "quickstart.toml", overrides=["rounds=2"], out=tmp_path / "<b> & 'q'")
    text = run._repr_html_()
    assert shown.rounded_up(run.epsilon) in cells(text)
    assert f"{run.test_accuracy:.1%}" in cells(text)
    assert "<b>" not in text
    assert parsed(text).find(".//a").get("href").endswith("report.html")
    assert len(list(parsed(text).iter("polyline"))) == 2
    assert {"epsilon against server", "infinite: trusted"} <= set(cells(text))
    captions = [one.text for one in parsed(text).iter("figcaption")]
    assert captions[1].endswith(f"last {shown.rounded_up(run.epsilon)}")


def test_what_nodes_keep_and_send_is_one_row_each():
    names = [f"client-{n}" for n in range(4)]
    common = {"unit": Unit.CLIENT, "adjacency": Adjacency.ADD_REMOVE, "time": 1}
    made = []
    for n, name in enumerate(names):
        own = frozenset({name})
        made.append(Release(source=name, subjects=own, audience=own, event=Gaussian(1.0), what="model", **common))
        near = frozenset({name, names[n - 1]})
        made.append(
            Release(
                source=name,
                subjects=frozenset(),
                audience=near,
                event=Product(()),
                inputs=(2 * n,),
                what="mean",
                **common,
            )
        )
    rows = [line.split("  ") for line in str(Ledger(made)).splitlines()[2:]]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:4] for row in rows] == [
        ["model", "client-0..3", "client-0..3", "itself only"],
        ["mean", "client-0..3", "subjects of its inputs", "itself and 1 other"],
    ]


def test_a_ledger_counts_its_releases_and_escapes_its_words():
    subjects = frozenset({"client-0", HOSTILE})
    common = {"subjects": subjects, "unit": Unit.CLIENT, "adjacency": Adjacency.ADD_REMOVE, "source": "server"}
    noisy = [Release(time=t, event=Gaussian(2.0), audience=frozenset({"public"}), **common) for t in (1, 2, 3)]
    clear = Release(time=3, event=Clear(), audience=frozenset({HOSTILE}), what=HOSTILE, **common)
    text = Ledger([*noisy, clear])._repr_html_()
    assert "<script" not in text
    assert {"3", "1 to 3", HOSTILE} <= set(cells(text))
    assert parsed(text).find(".//caption").text.startswith("4 releases, unit client")
    assert "0 releases" in Ledger()._repr_html_()


def test_many_kinds_of_releases_are_cut_and_that_is_said():
    one = {
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.ADD_REMOVE,
        "event": Gaussian(1.0),
        "time": 1,
        "source": "server",
    }
    names = [f"client-{n}" for n in range(30)]
    ledger = Ledger(Release(subjects=frozenset({name}), audience=frozenset({"public"}), **one) for name in names)
    assert "30 releases" in ledger._repr_html_()
    assert "10 kinds not shown" in ledger._repr_html_()


def test_a_scheme_shows_upper_bounds():
    scheme = accounting.poisson(noise=1.0, rate=0.01, steps=100)
    found = cells(scheme._repr_html_())
    assert shown.rounded_up(scheme.epsilon(delta=1e-5)) == found[found.index("1e-05") + 1]
    assert "100" in found


def test_a_curve_is_a_list_that_draws_itself():
    curve = accounting.epsilon_curve(Poisson(0.1, Gaussian(2.0)), 5, delta=1e-5)
    assert curve == list(curve)
    points = parsed(curve._repr_html_()).find(".//polyline").get("points").split()
    assert len(points) == len(curve) == 5
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights, reverse=True)
    assert shown.rounded_up(curve[-1]) in curve._repr_html_()
    assert (
        accounting.epsilon_curve(Clear(), 2, delta=1e-5)._repr_html_()
        == "<p>epsilon: infinite after 1, infinite after 2</p>"
    )


def test_gaps_stay_gaps():
    text = shown.svg_curve(HOSTILE, [1.0, None, math.inf, 2.0, 3.0])
    assert "<script" not in text
    assert len(re.findall("<polyline", text)) == 2
    assert shown.svg_curve("nothing", [None, math.inf]) == ""
