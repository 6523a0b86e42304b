"""A site's budget for life: durable, counted, never exceeded, whatever is killed, copied or brought back."""

import math
import os
import shutil
import stat
import sys
from multiprocessing import get_context

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sightline.accounting.filters import add_bounds
from sightline.accounting.likelihood_ratio import gaussian_delta
from sightline.errors import BudgetExhausted, InvalidInput
from sightline.events import Clear, Gaussian, Poisson
from sightline.runtimes.site.budget import LIFETIME, FileCounter, LifetimeBudget, StateBehind
from sightline.runtimes.site.policy import SitePolicy

ONE = {Gaussian(1.0): 1}
"""mu = 1: of (8, 1e-5) two fit, since 1.659^2 = 2.75."""


def policy(**changed):
    return SitePolicy(**{"client": 0, "classes": 2, "unit": "sample", "epsilon": 8.0, "delta": 1e-5} | changed)


def budget(site, **changed):
    site.mkdir(exist_ok=True)
    return LifetimeBudget(site / "state", policy(**{"counter": "../count"} | changed))


def roll_back(site, snapshot):
    shutil.rmtree(site / "state", ignore_errors=True)
    if snapshot.exists():
        shutil.copytree(snapshot, site / "state")


def test_a_reservation_is_durable_and_made_once(tmp_path):
    site = tmp_path / "site"
    first = budget(site).reserve("a", "first\nexperiment", ONE)
    assert first.mu == pytest.approx(1.0, rel=1e-9)
    assert first.label == "first experiment"
    assert budget(site).reserve("a", "again", ONE) == first
    status = budget(site).status()
    assert status.reservations == (first,)
    assert status.number == 1
    assert status.counter == str(tmp_path / "count")
    with pytest.raises(InvalidInput, match="approval=a: this approval was reserved for other events"):
        budget(site).reserve("a", "changed", {Gaussian(2.0): 1})


def test_what_does_not_fit_is_refused_in_one_line_and_leaves_nothing(tmp_path):
    site = tmp_path / "site"
    lifetime = budget(site)
    lifetime.reserve("a", "", ONE)
    lifetime.reserve("b", "", ONE)
    before = lifetime.status()
    with pytest.raises(
        BudgetExhausted, match=r"^epsilon=8 at delta=1e-05: the experiment costs 0.363 of the budget, and"
    ):
        lifetime.reserve("c", "", ONE)
    with pytest.raises(BudgetExhausted, match="costs more than the whole budget"):
        lifetime.reserve("d", "", {Clear(): 1})
    assert lifetime.status() == before
    lifetime.reserve("rest", "", {Gaussian(1 / before.mu_left): 1})
    assert lifetime.status().used == pytest.approx(1.0, abs=1e-6)
    assert lifetime.status().used <= 1


def test_the_status_says_what_is_spent_and_left(tmp_path):
    lifetime = budget(tmp_path / "site")
    assert (lifetime.status().spent, lifetime.status().used) == (0.0, 0.0)
    made = lifetime.reserve("a", "", {Poisson(0.1, Gaussian(3.0)): 200})
    status = lifetime.status()
    assert made.d0 > 0
    assert status.d0_left == pytest.approx(1e-6 - made.d0)
    assert status.mu_left == pytest.approx(math.sqrt(lifetime.filter.most_mu**2 - made.mu**2))
    assert 2.0 < status.spent < 2.4  # 2.13 if nothing were given away


def test_a_budget_cannot_be_changed_on_the_way(tmp_path):
    site = tmp_path / "site"
    budget(site).reserve("a", "", ONE)
    for changed in ({"epsilon": 9.0}, {"epsilon": 2.0}, {"delta": 1e-4}):
        with pytest.raises(InvalidInput, match="the lifetime budget was fixed at"):
            budget(site, **changed).status()


def test_a_snapshot_brought_back_refuses(tmp_path):
    site = tmp_path / "site"
    lifetime = budget(site)
    lifetime.reserve("a", "", ONE)
    shutil.copytree(site / "state", tmp_path / "snapshot")
    lifetime.reserve("b", "", ONE)
    roll_back(site, tmp_path / "snapshot")
    for question in (
        lifetime.check,
        lifetime.status,
        lambda: lifetime.advance("x"),
        lambda: lifetime.reserve("c", "", ONE),
    ):
        with pytest.raises(StateBehind, match="the counter is at 2 and this state at 1: the state is an old copy"):
            question()
    roll_back(site, tmp_path / "nothing")
    with pytest.raises(StateBehind, match="the counter is at 2 and this state at 0"):
        budget(site).reserve("c", "", ONE)


def test_answers_are_counted_too(tmp_path):
    site = tmp_path / "site"
    lifetime = budget(site)
    lifetime.reserve("a", "", ONE)
    shutil.copytree(site / "state", tmp_path / "snapshot")
    assert [lifetime.advance("answer") for _ in range(100)] == [*range(2, 102)]
    assert lifetime.check() == 101
    roll_back(site, tmp_path / "snapshot")
    with pytest.raises(StateBehind):
        lifetime.check()


def test_a_counter_that_is_gone_or_damaged_refuses(tmp_path):
    site = tmp_path / "site"
    budget(site).reserve("a", "", ONE)
    held = (tmp_path / "count").read_text()
    for damage in ("", "7", "two words", "1 " + "f" * 64, "\xff"):
        (tmp_path / "count").write_text(damage)
        with pytest.raises(StateBehind):
            budget(site).check()
    (tmp_path / "count").unlink()
    with pytest.raises(StateBehind, match="this state has been counted before; restore the newest counter file"):
        budget(site).check()
    with pytest.raises(StateBehind, match=r"or the counter or witness key that site\.toml had"):
        budget(site, counter=None).check()
    (tmp_path / "count").write_text(held)
    assert budget(site).check() == 1


@pytest.mark.parametrize("name", ["count.tmp", "count"])
def test_a_counter_follows_no_link_and_takes_no_name_of_another(name, tmp_path):
    """`COUNTER.tmp` was written through a link that another user had put there: his choice of a file was emptied."""
    victim, link = tmp_path / "victim", tmp_path / f"{name}.tmp"
    victim.write_text("mine")
    link.symlink_to(victim)
    budget(tmp_path / "site", counter=f"../{name}").reserve("a", "", ONE)
    assert (tmp_path / name).read_text().startswith("1 ")
    assert (victim.read_text(), link.is_symlink()) == ("mine", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        {"site", "victim", name, link.name, f"{name}.lock"}
    )


def test_the_lock_of_a_counter_follows_no_link(tmp_path):
    (tmp_path / "count.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(InvalidInput, match=r"lock=.*cannot be opened"):
        budget(tmp_path / "site").reserve("a", "", ONE)
    assert not (tmp_path / "victim").exists()


def test_a_counter_inside_the_state_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="rolled back with it"):
        budget(tmp_path / "site", counter="state/count")
    with pytest.raises(InvalidInput, match="its folder does not exist"):
        budget(tmp_path / "site", counter="../gone/count")
    with pytest.raises(InvalidInput, match="not both"):
        budget(tmp_path / "site", witness="true")


def test_every_site_has_a_counter_beside_its_folder(tmp_path):
    """Without one, a budget of 4.5 answered three experiments of epsilon 4: only lifetime.sqlite had to be lost."""
    site = tmp_path / "site"
    lifetime = budget(site, counter=None)
    lifetime.reserve("a", "", ONE)
    assert lifetime.status().counter == str(tmp_path / "site.counter")
    assert (tmp_path / "site.counter").read_text().startswith("1 ")
    roll_back(site, tmp_path / "nothing")
    with pytest.raises(StateBehind, match="the counter is at 1 and this state at 0: the state is an old copy"):
        budget(site, counter=None).check()


def test_a_counter_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)
    law = r"^site.toml: counter=.*: the site's user cannot write in its folder; name another file as counter in site.toml$"
    with pytest.raises(InvalidInput, match=law):
        budget(tmp_path / "site", counter=None)


def test_a_state_of_an_earlier_version_gets_its_counter_and_goes_on(tmp_path, monkeypatch):
    site = tmp_path / "site"
    with monkeypatch.context() as patch:
        patch.setattr(LifetimeBudget, "_confirm_counter", lambda *_: None)
        budget(site).reserve("a", "", ONE)
    assert not (tmp_path / "count").exists()
    assert budget(site).check() == 1
    assert (tmp_path / "count").read_text().startswith("1 ")
    assert stat.S_IMODE((tmp_path / "count").stat().st_mode) == 0o600


def test_two_copies_cannot_both_go_on(tmp_path):
    """Also not when one of them died after its state was written and before the counter was."""
    site, twin = tmp_path / "site", tmp_path / "twin"
    budget(site).check()
    shutil.copytree(site, twin)
    assert killed(site, "b", "before the counter")
    budget(twin).reserve("c", "", ONE)
    with pytest.raises(StateBehind, match="this state does not contain change 1: another copy of the state was used"):
        budget(site).check()
    assert budget(twin).check() == 1


KILLED = 9
POINTS = ("before the state", "before the counter", "after the counter")


def die_in_reserve(site, approval, where):
    """Runs in a process of its own, which ends without any goodbye."""
    write, confirm = FileCounter._write_mark, FileCounter.confirm
    lifetime = budget(site)
    lifetime.check()
    if where == "before the state":
        FileCounter.confirm = lambda self, marks, new: (confirm(self, marks, new=new), os._exit(KILLED))
    elif where == "before the counter":
        FileCounter._write_mark = lambda self, text: os._exit(KILLED)
    else:
        FileCounter._write_mark = lambda self, text: (write(self, text), os._exit(KILLED))
    lifetime.reserve(approval, "", ONE)


def killed(site, approval, where):
    process = get_context("fork").Process(target=die_in_reserve, args=(site, approval, where))
    process.start()
    process.join(30)
    return process.exitcode == KILLED


@pytest.mark.parametrize("where", POINTS)
def test_a_killed_site_is_neither_locked_out_nor_forgetful(tmp_path, where):
    site = tmp_path / "site"
    budget(site).reserve("a", "", ONE)
    assert killed(site, "b", where)
    written = where != "before the state"
    assert len(budget(site).status().reservations) == 1 + written
    assert (tmp_path / "count").read_text().split()[0] == str(1 + written)
    budget(site).reserve("b", "", ONE)
    assert len(budget(site).status().reservations) == 2
    with pytest.raises(BudgetExhausted):
        budget(site).reserve("c", "", ONE)


def try_many(site, start, count, queue):
    lifetime, made = budget(site), 0
    for number in range(start, start + count):
        try:
            lifetime.reserve(f"approval {number}", "", {Gaussian(2.0): 1})
            made += 1
        except BudgetExhausted:
            pass
    queue.put(made)


def test_two_processes_at_once_share_one_budget(tmp_path):
    site, context = tmp_path / "site", get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=try_many, args=(site, 8 * n, 8, queue)) for n in range(2)]
    for process in processes:
        process.start()
    made = sum(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(30)
    assert made == 11  # 11 / 4 <= 2.75 < 12 / 4
    assert budget(site).status().number == 11


WITNESS = """
import sys
from pathlib import Path
file = Path(sys.argv[1])
held = file.read_text().split() if file.exists() else ["-1"]
if int(sys.argv[2]) > int(held[0]):
    held = sys.argv[2:4]
    file.write_text(" ".join(held))
print(" ".join(held) if HEADS else held[0])
"""


def witness_command(folder, *, heads):
    (folder / "witness.py").write_text(WITNESS.replace("HEADS", str(heads)))
    return f"{sys.executable} -S {folder / 'witness.py'} {folder / 'seen'}"


def test_a_witness_that_knows_heads_tells_two_copies_apart(tmp_path):
    command = witness_command(tmp_path, heads=True)
    site, twin = tmp_path / "site", tmp_path / "twin"
    budget(site, counter=None, witness=command).reserve("a", "", ONE)
    budget(twin, counter=None).reserve("b", "", ONE)
    with pytest.raises(StateBehind, match="another copy of the state was used"):
        budget(twin, counter=None, witness=command).check()
    assert budget(site, counter=None, witness=command).check() == 1


@pytest.mark.parametrize("heads", [False, True])
def test_a_witness_command_notices_an_old_copy(tmp_path, heads):
    site = tmp_path / "site"
    lifetime = budget(site, counter=None, witness=witness_command(tmp_path, heads=heads))
    lifetime.reserve("a", "", ONE)
    shutil.copytree(site / "state", tmp_path / "snapshot")
    lifetime.advance("answer")
    assert lifetime.check() == 2
    roll_back(site, tmp_path / "snapshot")
    with pytest.raises(StateBehind, match="the counter is at 2 and this state at 1"):
        lifetime.check()


@pytest.mark.parametrize("command", ["false", "true", "echo none", "no-such-command-here", "'"])
def test_a_witness_that_says_nothing_refuses(tmp_path, command):
    with pytest.raises(StateBehind, match=r"^witness=.*the site answers nothing until it works again$"):
        budget(tmp_path / "site", counter=None, witness=command).reserve("a", "", ONE)


def test_a_damaged_database_is_one_line(tmp_path):
    site = tmp_path / "site"
    budget(site).check()
    (site / "state" / LIFETIME).write_bytes(b"no database" * 100)
    with pytest.raises(Exception, match=r"^state=lifetime.sqlite: cannot be read"):
        budget(site).check()


class Killed(BaseException):
    """A process that ended, without the cost of one."""


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from([0.7, 0.8, 1.0, 3.0]), st.sampled_from([None, *POINTS[1:]])),
        st.tuples(st.just("again"), st.integers(0, 5), st.none()),
        st.tuples(st.just("answer"), st.none(), st.sampled_from([None, *POINTS[1:]])),
        st.tuples(st.sampled_from(["snapshot", "roll back"]), st.none(), st.none()),
    ),
    min_size=5,
    max_size=20,
)


@settings(max_examples=80, deadline=None, phases=[Phase.generate])
@given(steps=STEPS)
def test_whatever_happens_all_that_was_granted_is_within_the_budget(tmp_path_factory, steps):
    """`granted`: all reservations that were ever returned, in whatever copy of the state; they alone can be used."""
    folder = tmp_path_factory.mktemp("life")
    site, snapshot, granted, names = folder / "site", folder / "snapshot", {}, []
    write = FileCounter._write_mark
    newest, rolled_back = 0, False

    def write_or_die(self, text):
        if where[0] == "after the counter":
            write(self, text)
        if where[0]:
            raise Killed
        write(self, text)

    where = [None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileCounter, "_write_mark", write_or_die)
        for kind, value, crash in steps:
            lifetime = budget(site)
            try:
                if kind == "snapshot":
                    lifetime.check()
                    shutil.rmtree(snapshot, ignore_errors=True)
                    shutil.copytree(site / "state", snapshot)
                elif kind == "roll back":
                    roll_back(site, snapshot)
                else:
                    if crash:
                        lifetime.check()  # so that it is this step's own write that is cut off
                    where[0] = crash
                    if kind == "answer":
                        lifetime.advance("answer")
                    else:
                        name = names[value % len(names)] if kind == "again" and names else f"{len(names)}"
                        noise = value if kind == "reserve" else float(granted[name].label) if name in granted else 1.0
                        names.append(name)
                        made = lifetime.reserve(name, str(noise), {Gaussian(noise): 1})
                        assert granted.setdefault(name, made) == made
            except (Killed, BudgetExhausted, InvalidInput):
                pass
            except StateBehind:
                rolled_back = True
            finally:
                where[0] = None
            if (site / "state").exists() and (folder / "count").exists():
                number = int((folder / "count").read_text().split()[0])
                assert number >= newest
                newest = number
    assert not rolled_back or any(kind == "roll back" for kind, _, _ in steps)
    mu_squared, d0 = add_bounds([made.bound for made in granted.values()])
    assert d0 + (gaussian_delta(math.sqrt(mu_squared), 8.0) if granted else 0.0) <= 1e-5
