"""Sequences of questions to a site, against an attacker that sees both worlds; and flawed sites that it finds out."""

import logging

import pytest

from sightline.errors import Refused
from sightline.ledger import Ledger
from sightline.randomness import OS_ROOT, ROOT_BYTES, Streams
from sightline.runtimes.site import site as site_module
from sightline.runtimes.site.budget import FileCounter, LifetimeBudget
from sightline.runtimes.site.site import Site
from sightline.runtimes.site.state import RunStore
from tests.hostile.site_sequences import Leak, play_sequences
from tests.hostile.site_worlds import CLAIMS, make_template


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """The sites of each unit in both worlds, approved."""
    place = tmp_path_factory.mktemp("worlds")
    for unit in CLAIMS:
        make_template(place, unit)
    return place


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "sightline.site")


@pytest.mark.parametrize(("sequences", "least"), [(10, 1), pytest.param(20, 3, marks=pytest.mark.slow)])
def test_answers_are_a_function_of_approved_releases(templates, sequences, least):
    found = play_sequences(templates, tuple(CLAIMS), range(sequences))
    assert found["sequences"] == sequences
    for what in ("values", "refusals", "kill", "roll_back", "another_start", "subject drawn", "subject not drawn"):
        assert found[what] >= least, what


def keep_no_order(monkeypatch):
    """A call may be answered again, from another start."""
    monkeypatch.setattr(RunStore, "refuse_passed", lambda *_: None)


def forget_vectors(monkeypatch):
    """What was asked is the call alone: another start gets what is stored."""
    monkeypatch.setattr(site_module, "_question_hash", lambda approval, call, *_: f"{approval.id} {call.position}")


def share_state(monkeypatch):
    """What a client keeps is one for all approvals, and is said to be noised."""

    def kept(self, memory):
        for path in sorted(self.path.parent.glob("*.secret")):
            array = RunStore(path).read().arrays.get(f"kept/{memory}")
            if array is not None and path != self.path:
                return site_module.stored_state.own_tensor(array), True
        return None, True

    monkeypatch.setattr(RunStore, "kept", kept)


def reuse_noise(monkeypatch):
    """Draws are the root's own, for every approval the same."""

    class SameStreams(Streams):
        def __init__(self, root):
            super().__init__(root[: len(OS_ROOT) + ROOT_BYTES])

    monkeypatch.setattr(site_module, "Streams", SameStreams)


def tell_failures(monkeypatch):
    """An update that the data made large is refused with these words."""
    compute = Site._compute_output

    def tell(self, side, *rest):
        if abs(self.data.train.x[-1]).max() > 10:
            raise Refused("update: did not converge")
        return compute(self, side, *rest)

    monkeypatch.setattr(Site, "_compute_output", tell)


def trust_backups(monkeypatch):
    """The counter is written and never read."""
    monkeypatch.setattr(FileCounter, "_read_mark", lambda self: None)
    monkeypatch.setattr("sightline.runtimes.site.budget.BudgetStore.is_counted", lambda self: False)


def forget_counts(monkeypatch):
    """Which answers were counted is not looked up, nor compared with the other files."""
    monkeypatch.setattr(LifetimeBudget, "was_counted", lambda self, what: False)
    monkeypatch.setattr(site_module.stored_state, "check_answers", lambda *_: None)


def clip_nothing(monkeypatch):
    """Noise of the right size on an update that is too long."""
    compute = Site._compute_with

    def lengthen(self, side, task, approval, kept, noised):
        found = compute(self, side, task, approval, kept, noised)
        found.value.add_(float(self.data.train.y.sum()))
        return found

    monkeypatch.setattr(Site, "_compute_with", lengthen)


def charge_nothing(monkeypatch):
    """The ledger is not written."""
    whole = Ledger.append
    forget = lambda self, found: None if any(", " in one.joint for one in found) else whole(self, found)  # noqa: E731
    monkeypatch.setattr(Ledger, "append", forget)
    monkeypatch.setattr(RunStore, "check_ledger", lambda *_: None)
    monkeypatch.setattr(site_module.stored_state, "check_answers", lambda *_: None)


FLAWS = [
    (keep_no_order, "client", "had to be refused"),
    (forget_vectors, "client", "had to be refused"),
    (share_state, "sample", "not drawn, and the answers differ|does not follow from what was released"),
    (reuse_noise, "client", "the same noise"),
    (tell_failures, "sample", "words differ"),
    (trust_backups, "client", "rolled-back state answered"),
    (forget_counts, "client", "old but for its budget"),
    (clip_nothing, "client", "claimed 0.4"),
    (charge_nothing, "client", "not in the ledger"),
]


@pytest.mark.parametrize(("flaw", "unit", "law"), FLAWS, ids=[flaw.__name__ for flaw, _, _ in FLAWS])
def test_a_flawed_site_is_found_out(flaw, unit, law, templates, monkeypatch):
    flaw(monkeypatch)
    with pytest.raises(Leak, match=law):
        play_sequences(templates, (unit,), range(100))
