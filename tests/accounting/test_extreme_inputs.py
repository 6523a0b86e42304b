"""Numbers that nobody means, through the commands and through exported ledgers: a bound or one line, and soon."""

import json
import math

import numpy as np
import pytest

from sightline import accounting
from sightline.accounting import dominating_pairs
from sightline.accounting.dominating_pairs import mean_of_copies, native_law
from sightline.accounting.likelihood_ratio import FAR, sampled_points
from sightline.apps.cli.main import run_arguments
from sightline.events import Adjacency, Gaussian, Poisson, Split, Unit, from_json
from sightline.ledger import Ledger, Release, export_ledger, parties

NINES = "9" * 400


def asked(line, capsys):
    """The answer to a command, None where it was refused as it should be."""
    code = run_arguments([*line.split(), "--json"])
    printed = capsys.readouterr()
    assert code in (0, 2), printed.err
    if code == 2:
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        return None
    assert printed.out.count("\n") == 1
    return json.loads(printed.out)


BOUNDS = {
    # line: no less than, no more than
    "account gaussian --noise 1e-300 --steps 1 --delta 1e-5": (1e200, math.inf),
    "account gaussian --noise 1e-160 --steps 1 --delta 1e-5": (1e200, math.inf),
    "account gaussian --noise 1e-90 --steps 1 --delta 1e-5": (1e179, 1e181),
    "account gaussian --noise 1e-90 --steps 1 --delta 1e-5 --accountant rdp": (1e179, 1e181),
    "account gaussian --noise 1e300 --steps 1000 --delta 1e-5": (0, 1e-6),
    "account gaussian --noise 1e160 --steps 1000 --delta 0.5 --accountant rdp": (0, 1e-6),
    "account gaussian --noise 1 --steps 1000000000000000 --delta 1e-5": (5e14, 6e14),
    "account poisson --noise 1e-300 --rate 0.1 --steps 100 --delta 1e-5": (1e200, math.inf),
    "account poisson --noise 1e300 --rate 0.1 --steps 100 --delta 1e-5": (0, 1e-3),
    "account poisson --noise 1e150 --rate 0.999999 --steps 100 --delta 1e-5": (0, 1e-3),
    "account poisson --noise 0.25 --rate 1e-30 --steps 1000000000000 --delta 1e-5": (0, 0),
    "account poisson --noise 1 --rate 1e-300 --steps 1 --delta 1e-29": (0, 0),
    "account poisson --noise 1 --rate 0.1 --steps 1000000000000000 --delta 1e-5 --accountant rdp": (1e9, math.inf),
    "account dropout --noise 1e16 --rate 0.1 --steps 1000 --delta 1e-5": (0, 1e-3),
    "account dropout --noise 1 --rate 0.1 --steps 1 --unsplit-noise 1e-300 --delta 1e-5": (1e200, math.inf),
    "account dropout --noise 1 --rate 0.1 --steps 10 --unsplit-noise 1e300 --delta 1e-5": (0.5, 5),
    "account split --noise 1 --parts 1000000000000 --rate 0.1 --steps 100 --delta 1e-5": (0, 1e-3),
    "account split --noise 0.06 --parts 1000000000000000 --rate 0.1 --steps 2 --delta 1e-5": (0, 300),
    "account split --noise 1e16 --parts 3 --rate 0.999999 --steps 9 --unsplit-noise 1 --delta 1e-5": (10, 20),
    "account balanced --noise 1 --steps 1000000000000 --uses 1 --delta 1e-5": (0, 1e-3),
    "account balanced --noise 1e16 --steps 1000000000000 --uses 999 --delta 1e-5": (0, 1e-3),
    "account balanced --noise 1e-160 --steps 1000 --uses 1 --delta 1e-5": (1e200, math.inf),
    "account check-ins --noise 1e6 --steps 100 --chance 0.5 --delta 1e-5": (0, 1e-3),
    "account check-ins --noise 1e160 --steps 100 --chance 0.5 --delta 1e-5 --accountant rdp": (0, 0.1),
    "account clustered --noise 1 --samples 100 --batch-size 10 --rounds 10 --selection-epsilon 1e300 --delta 1e-5":
        (1e299, math.inf),
    "account clustered --noise 1e-300 --samples 9 --batch-size 1 --rounds 9 --selection-epsilon 0.1 --delta 0.5":
        (1e200, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("line", BOUNDS)
def test_a_bound_for_any_number(line, capsys):
    found, (least, most) = asked(line, capsys), BOUNDS[line]
    assert least <= float(found["epsilon"]) <= most


@pytest.mark.parametrize(
    "line",
    [
        f"account gaussian --noise 1 --steps {NINES} --delta 1e-5",
        f"account poisson --noise 1 --rate 1e-30 --steps {NINES} --delta 1e-5",
        f"account balanced --noise 1 --steps {NINES} --uses 2 --delta 0.5",
        "account balanced --noise 1 --steps 10 --uses 11 --delta 1e-5",
        f"account split --noise 0.06 --parts {NINES} --rate 0.1 --steps 2 --delta 1e-5",
        "account split --noise 1 --parts 2000000000000000 --rate 0.1 --steps 2 --delta 1e-5",
        f"account split --noise 1 --parts 3 --rate 0.1 --steps {NINES} --delta 1e-5 --accountant rdp",
        "account poisson --noise nan --rate 0.1 --steps 2 --delta 1e-5",
        "account poisson --noise 1 --rate 1e300 --steps 2 --delta 1e-5",
        "account gaussian --noise inf --steps 2 --delta 1e-5",
        "calibrate h2fdp --rate -0.1 --steps 5 --segment 1000000000000 --epsilon 8 --delta 1e-5",
        f"calibrate h2fdp --rate 0.1 --steps 5 --segment {NINES} --epsilon 8 --delta 1e-5",
        f"calibrate gaussian --steps {NINES} --epsilon 8 --delta 1e-5 --accountant rdp",
        "calibrate clustered --samples 100 --batch-size 10 --rounds 10 --epsilon 8 --delta 0",
        "calibrate clustered --samples 9 --batch-size 1 --rounds 99 --selection-epsilon 1e300 --epsilon 8 --delta 1e-5",
        "groups --structure ring --workers 10 --groups 4 --period 5 --epochs 1000000000000 --noise 1 --delta 1e-5",
        f"groups --structure ring --workers {NINES} --groups 4 --epochs 20 --noise 1 --delta 1e-5",
        f"groups --structure ring --workers 9 --groups 4 --period {NINES} --epochs 20 --noise 1 --delta 1e-5",
    ],
)
def test_what_has_no_answer_is_one_line(line, capsys):
    assert asked(line, capsys) is None


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("calibrate poisson --rate 1e-30 --steps 1000000000000 --epsilon 1e-8 --delta 1e-5", 1e-8),
        ("calibrate split --parts 3 --rate 0.1 --steps 100 --epsilon 1e-8 --delta 1e-5", 1e-8),
        ("calibrate h2fdp --rate 1e-16 --steps 100 --epsilon 8 --delta 1e-5", 8),
        ("calibrate gaussian --steps 1000000000000 --epsilon 1e8 --delta 1e-29", 1e8),
    ],
)
def test_noise_for_any_budget(line, most, capsys):
    found = asked(line, capsys)
    assert 0 <= found["epsilon"] <= most
    assert found["noise_multiplier"] > 0


def gaussian(noise):
    return {"kind": "gaussian", "noise_multiplier": noise}


def nested(depth):
    """Coin inside coin."""
    event = gaussian(1.0)
    for _ in range(depth):
        event = {"kind": "poisson", "rate": 0.5, "event": event}
    return event


def told(*events):
    """An exported ledger of one release of each event."""
    row = json.loads(
        Release(
            1, "server", parties("client-0"), Unit.CLIENT, Adjacency.ADD_REMOVE, Gaussian(1.0), parties("public")
        ).body()
    )
    plain = export_ledger(Ledger())
    return plain | {"releases": [row | {"event": event} for event in events]}


EVENTS = {
    "hardly any noise": (gaussian(1e-300), (1e200, math.inf)),
    "endless noise": (gaussian(1e300), (0, 1e-6)),
    "hidden noise": ({"kind": "poisson", "rate": 0.5, "event": gaussian(1e300)}, (0, 0.1)),
    "hidden clear": ({"kind": "split", "parts": 2, "event": gaussian(1e-300)}, (1e200, math.inf)),
    "pooled": ({"kind": "pooled", "noises": 10**15, "event": gaussian(1e300)}, (0, 1e-6)),
    "parts": ({"kind": "split", "parts": 10**12, "event": gaussian(1.0)}, (0, 0.2)),
    "repeats": ({"kind": "repeat", "times": 10**15, "event": gaussian(1e-90)}, (1e190, 1e200)),
    "choice": ({"kind": "exponential", "epsilon": 1e300}, (1e299, math.inf)),
    "pure": ({"kind": "pure", "epsilon": 1e308}, (1e307, math.inf)),
    "product": ({"kind": "product", "events": [gaussian(100.0 + n) for n in range(3000)]}, (0.3, 0.5)),
    "repeats of repeats": (
        {"kind": "repeat", "times": 10**15, "event": {"kind": "repeat", "times": 10**15, "event": gaussian(1.0)}}, None,
    ),
    "more than can be counted": ({"kind": "split", "parts": 10**16, "event": gaussian(1.0)}, None),
    "a number of 400 digits": (gaussian(10**400), None),
    "as many steps": ({"kind": "allocation", "steps": 10**400, "uses": 1, "event": gaussian(1.0)}, None),
    "as many others": ({"kind": "without_replacement", "cohort": 1, "population": 10**400, "event": gaussian(1.0)}, None),
    "deeper than anybody reads": (nested(280), None),
    "no number": (gaussian(math.nan), None),
    "infinite": (gaussian(math.inf), None),
}  # fmt: skip


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("name", EVENTS)
def test_exported_ledgers_may_hold_anything(name, accountant, tmp_path, capsys):
    event, bounds = EVENTS[name]
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(told(event)))
    line = f"account ledger {path} --subject client-0 --observer public --delta 1e-5 --accountant {accountant}"
    found = asked(line, capsys)
    if bounds is None:
        assert found is None
    else:
        assert bounds[0] <= float(found["epsilon"]) <= bounds[1]


@pytest.mark.parametrize("copies", [3, 300])
def test_atoms_at_zero_may_be_moved_apart(copies, monkeypatch):
    """Where a lattice down to them would be too long: mass and mean are kept, and what it costs is hardly more."""
    law, tail = native_law(Gaussian(1.0), 1e-12), 1e-12
    assert law.zero > 0
    whole = mean_of_copies(law, copies, tail)
    monkeypatch.setattr(dominating_pairs, "FARTHEST_AVERAGED", 0)
    apart = mean_of_copies(law, copies, tail)
    assert apart.zero >= whole.zero
    assert apart.mass.sum() + apart.zero == pytest.approx(1.0, abs=1e-12)
    assert apart.mass @ np.exp(apart.loss) + apart.infinite == pytest.approx(1.0, abs=1e-12)
    assert apart.zero < 100 * tail


def test_a_far_atom_of_a_sampled_law_is_moved_apart():
    law = native_law(Gaussian(1e5), 1e-12)
    points = sampled_points(law, 0.5)
    assert law.zero > points.zero > 0
    assert points.loss[0] - math.log(0.5) > FAR * (points.loss[-1] - points.loss[0])
    assert points.mass.sum() + points.zero == pytest.approx(1.0, abs=1e-12)
    assert points.mass @ np.exp(points.loss) + points.infinite == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("event", [Split(2**21, Gaussian(0.5)), Split(2**40 + 12345, Gaussian(0.3))])
def test_more_parts_cost_less(event):
    fewer = accounting.epsilon({Poisson(0.5, Split(64, event.event)): 10}, 1e-9)
    assert accounting.epsilon({Poisson(0.5, event): 10}, 1e-9) <= fewer


def test_an_event_is_read_as_it_was_written():
    assert from_json({"kind": "split", "parts": 10**15, "event": gaussian(1e300)}) == Split(10**15, Gaussian(1e300))
