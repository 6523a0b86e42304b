"""The owner's newest word binds what was approved before, and no file of the state can be lost or put back unnoticed."""

import re
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w

from sightline.config import parse
from sightline.errors import InvalidInput, Refused, SightlineError
from sightline.ledger import LedgerDamaged
from sightline.randomness import write_secret
from sightline.runtimes.remote.client_executor import ClientSide
from sightline.runtimes.site import policy as signature
from sightline.runtimes.site.approval import read_approved
from sightline.runtimes.site.site import CLOSED, Site, answer_from
from sightline.runtimes.site.state import RunStore
from tests.flower.cases import privacy, releases_of
from tests.flower.test_site import (  # noqa: F401
    CENTRAL,
    LOCAL,
    SAMPLE,
    approve,
    frozen_head,
    question,
    refused_by,
    site_of,
    source_hash,
)


def set_policy(site, **changed):
    file = site.folder / "site.toml"
    file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | changed))


def refusal(site, plain=LOCAL, **asked):
    found = refused_by(site, question(plain, **asked))
    assert "\n" not in found
    return found


OWN = LOCAL | {"model": {"name": "tests.flower.test_site:frozen_head"}}
STRICTER = {
    "trust_server": (CENTRAL, {"trust_server": True}, {"trust_server": False}, "which this site does not trust"),
    "require_signature": (LOCAL, {}, {"require_signature": True}, "approved without a signature"),
    "largest_steps": (LOCAL, {}, {"largest_steps": 5}, "local steps=6: this site makes at most largest_steps=5"),
    "models": (OWN, {"models": {OWN["model"]["name"]: source_hash()}}, {"models": {}}, "only code that its owner"),
    "unit": (LOCAL, {}, {"unit": "sample"}, "the lifetime budget was begun for unit=client"),
    "adjacency": (LOCAL, {}, {"adjacency": "replace"}, "begun for unit=client, adjacency=add_remove"),
    "delta": (LOCAL, {}, {"delta": 1e-4}, "the lifetime budget was fixed at"),
    "largest_start": (LOCAL, {}, {"largest_start": 1e-3}, "norm at most 0.001"),
}


@pytest.mark.parametrize("restarted", [False, True], ids=["served on", "restarted"])
@pytest.mark.parametrize("key", STRICTER)
def test_a_stricter_policy_binds_what_was_approved_before(key, restarted, site_of):  # noqa: F811
    """Approved with trust_server = true and set to false, un-noised updates of norm 0.4 still left the site."""
    plain, before, after, law = STRICTER[key]
    site = site_of(plain, **before)
    start = np.zeros(24 if plain is OWN else 63, np.float32)
    asked = {"start": start + np.float32(0.01), "plain": plain}
    first = site.answer(question(**asked))
    assert "value" in first.arrays
    set_policy(site, **after)
    if restarted:
        site = Site(site.folder)
    assert law in refusal(site, **asked), "an answer that was given is not given again"
    assert law in refusal(site, **asked | {"round": 2})
    assert len(releases_of(site)) == 1


def test_a_policy_put_back_answers_again(site_of):  # noqa: F811
    site = site_of(LOCAL)
    policy = (site.folder / "site.toml").read_text()
    set_policy(site, largest_steps=5)
    assert "largest_steps=5" in refusal(site)
    (site.folder / "site.toml").write_text("client = ")
    assert "cannot be read" in refusal(site)
    (site.folder / "site.toml").write_text(policy.replace("data.npz", "gone.npz") + 'data = "gone.npz"\n')
    assert "gone.npz" in refusal(site)
    assert "gone.npz" in refusal(site), "and the policy before does not answer in its place"
    (site.folder / "site.toml").write_text(policy)
    assert "value" in site.answer(question(LOCAL)).arrays


@pytest.mark.parametrize(
    "slip", [{"epsilon": 7.0}, {"counter": "missing/counter"}, {"counter": "other"}, {"delta": 1e-9}]
)
def test_a_slip_in_the_policy_lasts_until_it_is_put_right(slip, site_of):  # noqa: F811
    """A site that is served kept the broken budget and read site.toml no more: only a restart helped."""
    site = site_of(LOCAL)
    assert "value" in site.answer(question(LOCAL)).arrays
    policy = (site.folder / "site.toml").read_text()
    set_policy(site, **slip)
    for _ in range(2):
        assert not site.answer(question(LOCAL, round=2)).arrays
    (site.folder / "site.toml").write_text(policy)
    assert "value" in site.answer(question(LOCAL, round=2)).arrays


@pytest.mark.parametrize(
    "policy", [{"witness": "ssh -i /secret/key host"}, {"counter": "/secret/counter"}, {"epsilon": "/secret"}]
)
def test_a_refusal_tells_nothing_of_the_owners_files(policy, site_of, caplog):  # noqa: F811
    """The command of the witness, the path of the counter and values of site.toml went to the server."""
    site = site_of(LOCAL)
    set_policy(site, **policy)
    assert site.answer(question(LOCAL)).fields == {"refused": CLOSED}
    assert "/secret" in caplog.text
    caplog.clear()
    assert answer_from(site.folder, question(LOCAL)).fields == {"refused": CLOSED}
    assert "/secret" in caplog.text


def test_a_delta_that_is_no_longer_allowed_is_not_told(site_of):  # noqa: F811
    site = site_of(SAMPLE, delta=0.5, allow_large_delta=True)
    set_policy(site, allow_large_delta=False)
    assert site.answer(question(SAMPLE)).fields == {"refused": CLOSED}


def test_a_looser_policy_changes_no_approval(site_of):  # noqa: F811
    site = site_of(LOCAL)
    cost = site.spent()
    set_policy(site, trust_server=True, largest_steps=10**6)
    value = site.answer(question(LOCAL)).arrays["value"]
    assert value.std() > 0.8 * (1 - 8 / np.sqrt(2 * 63))
    assert site.spent() == cost


def test_a_key_that_is_no_longer_known_answers_nothing(site_of):  # noqa: F811
    pytest.importorskip("cryptography")
    site = site_of(LOCAL, approved=0)
    key = site.folder / "researcher.key"
    public = signature.make_key(key)
    set_policy(site, known_keys=[public], require_signature=True)
    site = Site(site.folder)
    drawn = site.draw_up(parse(LOCAL), signature=signature.sign_digest(key, question(LOCAL).fields["digest"]))
    site.approve(drawn)
    assert "value" in site.answer(question(LOCAL)).arrays
    for policy in ({"known_keys": ["0" * 64]}, {"known_keys": [], "require_signature": False}):
        set_policy(site, **policy)
        assert "no longer one of known_keys" in refusal(site, round=2)


def test_a_plan_that_is_not_the_approved_one_is_refused(site_of):  # noqa: F811
    """Whatever the reason is: a version may plan otherwise."""
    site = site_of(LOCAL)
    (approval,) = site.approvals.all()
    path = site.folder / "state" / "approvals" / f"{approval.id}.json"
    path.write_text(path.read_text().replace('"steps": 6', '"steps": 7'))
    assert "gives another plan than the approved one; approve the experiment again" in refusal(site)


# revoking


def test_a_revoked_approval_answers_nothing_and_stays_spent(site_of):  # noqa: F811
    site = site_of(LOCAL, epsilon=5.0)
    (approval,) = site.approvals.all()
    told = {"experiment": read_approved(approval).name, "progress": "not begun", "last_answer": None}
    assert site.describe_run(approval) == told
    assert "value" in site.answer(question(LOCAL)).arrays
    running = site.describe_run(approval)
    assert running["progress"] == "running"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", running["last_answer"])
    cost = site.spent()
    assert Site(site.folder).revoke(approval.id)
    assert not Site(site.folder).revoke(approval.id), "once is enough"
    for asked in ({}, {"round": 2}, {"run": "b"}):
        assert "revoked it; nothing more is answered" in refusal(site, **asked) or "bound" in refusal(site, **asked)
    assert site.spent() == cost
    assert site.progress(approval) == (1, 0)
    assert site.describe_run(approval)["progress"] == "ended"
    with pytest.raises(InvalidInput, match="APPROVAL=nothing: is not approved here; sightline site status"):
        site.revoke("nothing")


def test_another_approval_of_the_same_experiment_is_used_in_place_of_a_revoked_one(site_of):  # noqa: F811
    site = site_of(LOCAL, approved=2)
    site.revoke(site.approvals.all()[0].id)
    assert "value" in site.answer(question(LOCAL)).arrays
    assert [joint.joint.partition(",")[0] for joint in releases_of(site)] == [site.approvals.all()[1].id]


def test_an_answer_that_is_being_computed_does_not_leave_once_it_is_revoked(site_of, monkeypatch):  # noqa: F811
    site, whole = site_of(LOCAL), ClientSide.compute_task
    (approval,) = site.approvals.all()

    def revoke_meanwhile(self, *how):
        assert Site(site.folder).revoke(approval.id)
        return whole(self, *how)

    monkeypatch.setattr(ClientSide, "compute_task", revoke_meanwhile)
    assert "revoked it" in refusal(site)
    assert "revoked it" in refusal(Site(site.folder))


@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
@pytest.mark.parametrize("how", ["revoke", "policy"])
def test_no_answer_leaves_after_the_owner_forbade_it(how, again, site_of, monkeypatch):  # noqa: F811
    """An answer was counted, then waited for answer_seconds: it left 5 s after `revoke` had returned."""
    site = site_of(LOCAL, answer_seconds=0.5)
    (approval,) = site.approvals.all()
    if again:
        assert "value" in site.answer(question(LOCAL)).arrays

    def forbid(*how_long):
        if how == "revoke":
            assert Site(site.folder).revoke(approval.id)
        else:
            set_policy(site, require_signature=True)

    if again:
        whole = RunStore.answer_to
        monkeypatch.setattr(RunStore, "answer_to", lambda *how: (forbid(), whole(*how))[1])
    else:
        monkeypatch.setattr(Site, "_wait_from", forbid)
    assert ("revoked it" if how == "revoke" else "was changed while the answer was computed") in refusal(site)
    monkeypatch.undo()
    assert ("revoked it" if how == "revoke" else "approved without a signature") in refusal(site)


# lost and restored files


def test_three_experiments_of_epsilon_four_do_not_fit_a_budget_of_four_and_a_half(site_of):  # noqa: F811
    """With lifetime.sqlite lost in between, and no counter, all three were answered: epsilon 12 of 4.5."""
    plain = LOCAL | {"privacy": privacy("client", "client", epsilon=4.0)}
    site = site_of(plain, epsilon=4.5, approved=0)
    answered = 0
    for seed in range(3):
        try:
            site = Site(site.folder)
            approve(site, plain | {"seed": seed})
            answered += "value" in site.answer(question(plain | {"seed": seed}, run=str(seed))).arrays
        except SightlineError as error:
            assert "state=lifetime.sqlite: it holds no reservation" in str(error)
        for lost in (site.folder / "state").glob("lifetime.sqlite*"):
            lost.unlink()
        for counter in site.folder.parent.glob("site-2.counter*"):
            counter.unlink()
    assert answered == 1
    assert "holds no reservation" in refusal(Site(site.folder), plain | {"seed": 0}, run="0", round=2)


def save(site, to):
    """A backup of the state and, against the advice, of its counter."""
    shutil.copytree(site.folder / "state", to / "state")
    shutil.copy(site.folder.parent / "site-2.counter", to / "counter")


def put_back(site, source, pattern):
    """Put files of a backup back, or lose them where it has none; the counter comes with the budget that it counts."""
    state = site.folder / "state"
    for path in [*state.glob(pattern), *state.glob(f"{pattern}-wal"), *state.glob(f"{pattern}-shm")]:
        path.unlink()
    for path in (source / "state").glob(pattern):
        shutil.copy(path, state / path.relative_to(source / "state"))
    if pattern == "lifetime.sqlite":
        shutil.copy(source / "counter", site.folder.parent / "site-2.counter")


FILES = {
    "lifetime.sqlite": "state=lifetime.sqlite: it",
    "budget.sqlite": "state=budget.sqlite: it lacks",
    "approvals/*-1.json": "state=approvals: it lacks approval",
    "approvals/*-1.secret": "restore the newest",
}


MOMENTS = ("nothing", "approved", "asked once")
LOSSES = [(file, older) for file in FILES for older in MOMENTS if not file.endswith("json") or older == "nothing"]


@pytest.mark.parametrize(("pattern", "older"), LOSSES)
def test_a_file_that_was_lost_or_put_back_is_noticed_by_the_others(pattern, older, site_of, tmp_path):  # noqa: F811
    """Also when its counter came back with it."""
    site = site_of(LOCAL, approved=0)
    moments = {}

    def moment(name):
        moments[name] = tmp_path / name
        save(site, moments[name])

    site.budget.check()
    moment("nothing")
    approve(site, LOCAL)
    moment("approved")
    site.answer(question(LOCAL))
    moment("asked once")
    for round in (2, 3):
        assert "value" in site.answer(question(LOCAL, round=round)).arrays
    put_back(site, moments[older], pattern)
    reopened = Site(site.folder)
    with pytest.raises(LedgerDamaged, match=FILES[pattern]) as caught:
        reopened.check()
    assert "restore the newest" in str(caught.value)
    assert "restore the newest" in refusal(reopened, round=4)
    with pytest.raises(LedgerDamaged):
        approve(reopened, LOCAL | {"seed": 5})


def test_a_crash_while_approving_or_revoking_passes(site_of, monkeypatch):  # noqa: F811
    """A reservation without its approval, and an end without its file: nothing was lost."""
    site = site_of(LOCAL, approved=0)
    with monkeypatch.context() as patch:
        patch.setattr(type(site.approvals), "put", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            approve(site, LOCAL)
    cost = site.spent()
    assert cost > 0
    Site(site.folder).check()
    approval = approve(Site(site.folder), LOCAL)
    assert site.spent() == cost, "reserved once"
    site.budget.end(approval.id, "revoked")
    Site(site.folder).check()
    assert not Site(site.folder).revoke(approval.id)
    assert site.approvals.ended() == [approval.id]


def test_a_revocation_cannot_be_taken_back_with_an_older_budget(site_of, tmp_path):  # noqa: F811
    site = site_of(LOCAL)
    site.answer(question(LOCAL))
    save(site, tmp_path / "before")
    site.revoke(site.approvals.all()[0].id)
    put_back(site, tmp_path / "before", "lifetime.sqlite")
    assert "does not know that approval" in refusal(Site(site.folder), round=2)


def test_a_site_without_a_reservation_answers_nothing_while_it_is_served(site_of):  # noqa: F811
    """The process that serves compared the files before this one was lost."""
    site = site_of(LOCAL)
    assert "value" in site.answer(question(LOCAL)).arrays
    for lost in [*(site.folder / "state").glob("lifetime.sqlite*"), *site.folder.parent.glob("site-2.counter*")]:
        lost.unlink()
    assert "state=lifetime.sqlite: holds no reservation of approval" in refusal(site, round=2)
    assert len(releases_of(site)) == 1


@pytest.mark.parametrize("harm", ["gone", "empty", "another"])
def test_another_noise_root_is_noticed(harm, site_of):  # noqa: F811
    """A root that was lost was drawn again, and an empty one was used."""
    site = site_of(LOCAL)
    assert "value" in site.answer(question(LOCAL)).arrays
    root = site.folder / "state" / "noise-root.secret"
    root.unlink()
    if harm != "gone":
        write_secret(root, b"" if harm == "empty" else bytes(32))
    with pytest.raises(SightlineError, match=r"noise-root\.secret: "):
        Site(site.folder).check()
    if harm == "another":
        assert "is not the one that this state began with" in refusal(Site(site.folder), round=2)
    assert len(releases_of(site)) == 1


def test_the_number_of_a_site_is_fixed_for_life(site_of):  # noqa: F811
    """With approvals of client 2, site.toml could say client 1: its ledger was then read for another participant."""
    site = site_of(LOCAL)
    set_policy(site, client=1)
    assert "this state belongs to client 2; put the old value back" in refusal(site)
    with pytest.raises(InvalidInput, match="belongs to client 2"):
        Site(site.folder).check()
    set_policy(site, client=2)
    assert "value" in site.answer(question(LOCAL)).arrays


# failures


def test_when_blank_examples_fail_too_nothing_leaves_and_the_run_ends(site_of, monkeypatch, caplog):  # noqa: F811
    """The site answered 63 exact zeros, without noise."""
    site = site_of(LOCAL)

    def fail(*_):
        raise ValueError("example 17 is 0.25")

    with monkeypatch.context() as patch:
        patch.setattr(ClientSide, "compute_task", fail)
        assert "could not be computed here, on blank examples either" in refusal(site)
    assert "0.25" not in refusal(site)
    assert "it stays charged" in caplog.text
    assert len(releases_of(site)) == 1
    assert "could not be computed here" in refusal(Site(site.folder), round=2), (
        "one refusal tells one bit, not one each"
    )
    (approval,) = site.approvals.all()
    assert site.progress(approval) == (0, 0)
    assert site.budget.record().ended == {approval.id: "failed"}


# what the owner reads


@pytest.mark.parametrize("clip_norm", [1e30, 1e-12])
def test_odd_clip_norms_are_remarked_on(clip_norm, site_of):  # noqa: F811
    """1e30 and 1e-12 passed without remark."""
    site = site_of(LOCAL, approved=0)
    odd = LOCAL | {"privacy": LOCAL["privacy"] | {"clip_norm": clip_norm}}
    assert f"note: privacy.clip_norm={clip_norm:g}: updates and gradients usually" in "\n".join(
        site.describe(site.draw_up(parse(odd)))
    )
    assert "note:" not in "\n".join(site.describe(site.draw_up(parse(LOCAL))))


def test_the_summary_has_the_share_of_the_budget(site_of):  # noqa: F811
    site = site_of(LOCAL, epsilon=8.0)
    used = site.budget.status().used
    said = site.describe(site.draw_up(parse(LOCAL)))[-1]
    percent = np.ceil(1000 * used) / 10
    assert said == (
        f"that is {percent:.1f} % of the budget for life, epsilon 8: {percent:.1f} % are reserved before, "
        f"{100 - np.ceil(2000 * used) / 10:.1f} % are left then"
    )
    site = site_of(LOCAL, epsilon=4.0)
    assert site.describe(site.draw_up(parse(LOCAL)))[-1].endswith("it does not fit")
    none = LOCAL | {"privacy": LOCAL["privacy"] | {"noise_multiplier": 0.1}}
    assert "more than 100 % of the budget for life" in site.describe(site.draw_up(parse(none)))[-1]


def test_progress_counts_what_was_answered_and_what_can_be_asked(site_of):  # noqa: F811
    site = site_of(LOCAL)
    (approval,) = site.approvals.all()
    assert site.progress(approval) == (0, 4)
    site.answer(question(LOCAL, round=1))
    site.answer(question(LOCAL, round=3))
    assert site.progress(approval) == (2, 1), "round 2 has passed"
    site.answer(question(LOCAL, round=4))
    assert site.progress(approval) == (3, 0)


def test_a_server_that_was_handed_values_is_named(site_of):  # noqa: F811
    site = site_of(CENTRAL, trust_server=True)
    assert site.handed_over() == 0
    site.answer(question(CENTRAL))
    set_policy(site, trust_server=False)
    assert Site(site.folder).handed_over() == 1
    with pytest.raises(Refused):
        approve(Site(site.folder), CENTRAL)
