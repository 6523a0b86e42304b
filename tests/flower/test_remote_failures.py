"""Nodes die, come late, refuse or send garbage: the round goes on without them, the ledger stays, the operator sees."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import sightline
from sightline.config import parse
from sightline.errors import SightlineError
from sightline.ledger import Ledger
from sightline.runtimes.remote.clients import NobodyAnswers, refuse_a_known_seed
from sightline.runtimes.remote.message import WireMessage
from tests.flower.cases import CASES, bits, changed, privacy, same

FULL = changed(sampling={"clients": {"scheme": "full"}})
LOCAL = FULL | {"privacy": privacy("client", "client", noise_multiplier=2.0)}
OPEN = FULL | {"privacy": {"unit": "none"}}


def sent(array):
    return lambda answer: WireMessage(answer.fields, {"value": np.asarray(array)})


GARBAGE = {
    "is gone": lambda answer: "no answer within 5 seconds",
    "refuses": lambda answer: WireMessage({"refused": "epsilon=8: would cost 9"}),
    "wrong shape": sent(np.zeros(7, np.float32)),
    "wrong axes": sent(np.zeros((1, 63), np.float32)),
    "whole numbers": sent(np.zeros(63, np.int64)),
    "not a number": sent(np.full(63, np.nan, np.float32)),
    "infinite": sent(np.full(63, np.inf, np.float32)),
    "huge": sent(np.full(63, 1e30, np.float32)),
    "nothing": lambda answer: WireMessage({}, {}),
}


class Troubled:
    """A post on which the answers of one client are changed on the way."""

    def __init__(self, post, client, change, rounds=(2,)):
        self.post, self.client, self.change, self.rounds = post, client, change, rounds

    def ask(self, letters, group):
        found = dict(self.post.ask(letters, group))
        if int(group.split("/")[1]) in self.rounds and self.client in found:
            found[self.client] = self.change(found[self.client])
        return found

    def close(self):
        pass


@pytest.mark.parametrize("plain", [FULL, LOCAL, OPEN], ids=["central", "local", "open"])
@pytest.mark.parametrize("trouble", GARBAGE)
def test_the_round_goes_on_without_it(trouble, plain, run_remotely, loopback):
    told = []
    run = run_remotely(
        plain, post=Troubled(loopback, 3, GARBAGE[trouble]), tell=lambda *words: told.append(words), out=trouble[:3]
    )
    assert [(round, client) for round, client, _ in told] == [(2, 3)]
    assert told[0][2]
    assert run.summary["rounds_done"] == 4
    assert all(np.isfinite(value).all() for value in load_file(run.directory / "model.safetensors").values())


@pytest.mark.parametrize("plain", [FULL, LOCAL], ids=["central", "local"])
def test_the_ledger_is_that_of_a_round_in_which_everybody_answered(plain, run_remotely, loopback, tmp_path):
    here = sightline.run(parse(plain), out=tmp_path / "here")
    there = run_remotely(plain, post=Troubled(loopback, 3, GARBAGE["is gone"]), tell=lambda *words: None)
    assert bits(there)[1] == without_pools(bits(here)[1])
    assert there.epsilon == here.epsilon


def without_pools(bodies):
    """Rows as nodes make them: who may not answer adds no noise, so it is counted on nobody else's."""
    found = []
    for body in bodies:
        row = json.loads(body)
        if row["event"]["kind"] == "pooled":
            row |= {"event": row["event"]["event"], "coins_known_to": ""}
        found.append(json.dumps(row, separators=(",", ":")))
    return found


def test_without_the_lost_one_the_sum_is_that_of_the_others(run_remotely, loopback, tmp_path):
    """One round of central noise: leaving client 3 out moves the mean by its clipped update / 6, nothing else."""
    one = FULL | {"rounds": 1, "privacy": privacy("client", noise_multiplier=0.8)}
    answers = {}

    class Seen:
        def ask(self, letters, group):
            answers.update(loopback.ask(letters, group))
            return answers

        def close(self):
            pass

    whole = run_remotely(one, post=Seen(), out="whole")
    without = run_remotely(one, post=Troubled(loopback, 3, GARBAGE["is gone"], (1,)), tell=lambda *w: None, out="less")
    found = [load_file(run.directory / "model.safetensors") for run in (whole, without)]
    moved = np.concatenate([(found[0][name] - found[1][name]).ravel() for name in found[0]])
    expected = answers[3].arrays["value"] / 6
    assert sorted(np.abs(moved)) == pytest.approx(sorted(np.abs(expected)), abs=1e-6)


def test_personal_models_of_the_lost_stay_as_they_were(run_remotely, loopback):
    plain = FULL | {"algorithm": {"name": "local"}, "privacy": LOCAL["privacy"], "rounds": 2}
    run = run_remotely(plain, post=Troubled(loopback, 3, GARBAGE["is gone"]), tell=lambda *words: None)
    before = run_remotely(plain | {"rounds": 1}, out="before")
    after, once = (load_file(one.directory / "model.safetensors") for one in (run, before))
    for name in (name for name in after if name.startswith("client-3/")):
        assert after[name].tobytes() == once[name].tobytes()


def test_when_nobody_answers_the_run_stops_and_can_go_on(run_remotely, loopback, tmp_path):
    class Deaf:
        def ask(self, letters, group):
            round = int(group.split("/")[1])
            return loopback.ask(letters, group) if round < 2 else dict.fromkeys(letters, "gone")

        def close(self):
            pass

    plain = FULL | {"rounds": 5}
    with pytest.raises(NobodyAnswers, match="--resume"):
        run_remotely(plain, post=Deaf(), tell=lambda *words: None)
    resumed = run_remotely(plain, resume=True, tell=lambda *words: None)
    assert resumed.summary["rounds_done"] == 5


def test_in_a_simulation_nothing_may_go_wrong_unseen(run_remotely, loopback):
    with pytest.raises(SightlineError, match=r"client-3: sent float32 \(7,\)"):
        run_remotely(FULL, post=Troubled(loopback, 3, GARBAGE["wrong shape"]))


class Killed(Exception):
    pass


@pytest.mark.parametrize("case", ["algorithm scaffold", "algorithm pfedme", "local noise"])
def test_killed_in_a_round_and_resumed_on_fresh_nodes_it_ends_with_the_same_bits(
    case, run_remotely, loopback, monkeypatch, tmp_path
):
    plain = CASES[case]
    append, calls = Ledger.append, []

    def dies(self, releases):
        made = append(self, releases)
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return made

    monkeypatch.setattr(Ledger, "append", dies)
    with pytest.raises(Killed):
        run_remotely(plain)
    monkeypatch.undo()
    loopback.kept.clear()
    resumed = run_remotely(plain, resume=True)
    same(resumed, sightline.run(parse(plain), out=tmp_path / "whole"))


def test_nothing_is_asked_in_upcycled_steps(run_remotely, loopback):
    run_remotely(FULL | {"algorithm": {"name": "fedavg", "upcycle": 0.5}})
    assert [group for group, _ in loopback.asked] == [f"server/{round}" for round in range(1, 5)]


def test_groups_of_nodes_get_their_own_models(run_remotely, loopback):
    run_remotely(CASES["algorithm dp_ogl"])
    names = {group.split("/")[0] for group, letters in loopback.asked if letters}
    assert len(names) == 3


def test_letters_survive_the_post():
    letter = WireMessage({"a": [1, None, "x"]}, {"v": np.arange(3.0), "w": np.zeros((2, 2), np.float32)})
    again = WireMessage.from_bytes(letter.to_bytes())
    assert again.fields == letter.fields
    assert all(torch.equal(torch.from_numpy(again.arrays[n].copy()), torch.from_numpy(letter.arrays[n])) for n in "vw")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 64, (12).to_bytes(8, "little") + b'{"a": "b"}  '])
def test_broken_letters_are_refused(content):
    with pytest.raises(SightlineError):
        WireMessage.from_bytes(content)


@pytest.mark.parametrize("where", ["server", "edge"])
def test_noise_from_a_seed_that_every_site_is_told_is_refused(where, loopback, run_remotely):
    """The question itself holds the seed, from which anybody draws the server's noise again."""
    tree = {"topology": {"kind": "tree", "subnets": 2, "trusted": 1.0}} if where == "edge" else {}
    plain = changed(privacy=privacy("client", where, noise_multiplier=1.0), **tree)
    run_remotely(plain | {"rounds": 1})
    _, letters = loopback.asked[0]
    assert all(f"seed = {parse(plain).seed}" in words["experiment"] for words in letters.values())
    with pytest.raises(SightlineError, match="noise_source=seed"):
        refuse_a_known_seed(parse(plain))
    refuse_a_known_seed(
        parse(changed(privacy=privacy("client", where, noise_multiplier=1.0, noise_source="os"), **tree))
    )
    refuse_a_known_seed(parse(LOCAL))
