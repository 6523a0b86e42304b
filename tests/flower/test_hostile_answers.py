"""One client is hostile. Whatever it answers, the others' guarantee, the sum and the ledger are those of an honest run."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from sightline.errors import SightlineError
from sightline.runtimes.remote.message import WireMessage
from tests.flower.cases import CASES, bits, changed, privacy

FULL = {"clients": {"scheme": "full"}}
TREE = CASES["tree, trusted edges noise"] | {"rounds": 3}
PLACES = {
    "central": (changed(sampling=FULL, rounds=3), 3),
    "local": (changed(sampling=FULL, rounds=3, privacy=privacy("client", "client", noise_multiplier=2.0)), 3),
    "below a trusted edge": (TREE, 1),
    "below an edge that is not": (TREE, 4),
}
BAD_ROUND = 2


class Hostile:
    """A post on which one client answers as it likes in one round; `seen` holds every honest answer before it."""

    def __init__(self, post, client, change):
        self.post, self.client, self.change, self.seen = post, client, change, {}

    def ask(self, letters, group):
        found, round = dict(self.post.ask(letters, group)), int(group.split("/")[1])
        if round == BAD_ROUND and self.client in letters:
            found = self.change(found, self)
        self.seen |= {(round, client): answer for client, answer in found.items()}
        return found

    def close(self):
        pass


def value(make):
    """Its own letter, with another vector in it."""

    def change(found, post):
        honest = found[post.client]
        return found | {post.client: WireMessage(honest.fields, {"value": make(honest.arrays["value"])})}

    return change


def words(**more):
    def change(found, post):
        honest = found[post.client]
        return found | {post.client: WireMessage({**honest.fields, **more}, honest.arrays)}

    return change


def of_old(found, post):
    return found | {post.client: post.seen[BAD_ROUND - 1, post.client]}


def of_another(found, post):
    return found | {post.client: next(a for (_, client), a in post.seen.items() if client != post.client)}


def as_another(found, post):
    answer = found[post.client]
    return found | {post.client: WireMessage({**answer.fields, "client": 0}, answer.arrays)}


LEFT_OUT = {
    "nan": (value(lambda v: np.full_like(v, np.nan)), "not finite"),
    "one nan": (value(lambda v: np.where(np.arange(v.size) == 7, np.float32(np.nan), v)), "not finite"),
    "inf": (value(lambda v: np.full_like(v, -np.inf)), "not finite"),
    "1e30": (value(lambda v: np.full_like(v, 1e30)), "sent a vector of norm"),
    "1e300 in doubles": (value(lambda v: np.full(v.shape, 1e300)), "sent a vector of norm|not finite"),
    "wrong shape": (value(lambda v: v[:7]), r"sent float32 \(7,\)"),
    "more axes": (value(lambda v: v[None]), r"sent float32 \(1, "),
    "scalar": (value(lambda v: v[0]), r"sent float32 \(\)"),
    "whole numbers": (value(lambda v: v.astype(np.int64)), "sent int64"),
    "half floats": (value(lambda v: v.astype(np.float16)), "sent float16"),
    "foreign bytes": (value(lambda v: v.astype(">f4")), "sent >f4"),
    "complex": (value(lambda v: v.astype(np.complex64)), "sent complex64"),
    "words for numbers": (value(lambda v: v.astype(str)), "sent <U"),
    "too long a vector": (value(lambda v: np.zeros(10**7, np.float32)), r"sent float32 \(10000000,\)"),
    "old round": (of_old, "answers a question of round 1"),
    "old round, relabelled": (
        lambda found, post: words(question=post.seen[1, post.client].fields["question"])(found, post),
        "another question than the one that was asked",
    ),
    "another's answer": (of_another, "signed as client"),
    "another's name": (as_another, "signed as client 0"),
    "no mark": (lambda found, post: found | {post.client: WireMessage({}, found[post.client].arrays)}, "signed as client"),
    "a long story": (words(refused="x" * 10**6), "refused: x+"),
    "escapes": (words(refused="\x1b[2J\u202ehello\n\nsightline: done"), r"refused: \\x1b\[2J\\u202ehello sightline"),
}  # fmt: skip


def finite(run):
    return all(np.isfinite(part).all() for part in load_file(run.directory / "model.safetensors").values())


@pytest.fixture
def honest(run_remotely, known={}):  # noqa: B006
    """The run of every place in which everybody is honest: bodies of its ledger, epsilon, tensors; each made once."""

    def make(where):
        if where not in known:
            run = run_remotely(PLACES[where][0], out="honest", tell=lambda *words: 1 / 0)
            tensors = load_file(run.directory / "model.safetensors")
            known[where] = [release.body() for release in run.ledger], run.epsilon, tensors
        return known[where]

    return make


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("trouble", LEFT_OUT)
def test_it_is_left_out_and_the_ledger_is_that_of_an_honest_run(trouble, where, run_remotely, loopback, honest):
    (plain, client), (change, law), told = PLACES[where], LEFT_OUT[trouble], []
    run = run_remotely(plain, post=Hostile(loopback, client, change), tell=lambda *words: told.append(words))
    assert {(round, who) for round, who, _ in told} == {(BAD_ROUND, client)}
    for *_, why in told:
        assert re.search(law, why), why
        assert len(why) <= 400
        assert why.isprintable()
    assert run.summary["rounds_done"] == plain["rounds"]
    assert finite(run)
    assert (bits(run)[1], run.epsilon) == honest(where)[:2]


@pytest.mark.parametrize("where", PLACES)
def test_zeros_are_an_update_like_any_other(where, run_remotely, loopback, honest):
    plain, client = PLACES[where]
    run = run_remotely(plain, post=Hostile(loopback, client, value(np.zeros_like)), tell=lambda *words: 1 / 0)
    assert finite(run)
    assert bits(run)[1] == honest(where)[0]
    ours, theirs = load_file(run.directory / "model.safetensors"), honest(where)[2]
    assert any(not np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("where", PLACES)
def test_answers_that_nobody_asked_for_change_nothing(where, run_remotely, loopback, honest):
    plain, client = PLACES[where]

    def more(found, post):
        return found | dict.fromkeys((-1, 6, 99), found[client]) | {"client-3": found[client]}

    run = run_remotely(plain, post=Hostile(loopback, client, more), tell=lambda *words: 1 / 0)
    ours, theirs = load_file(run.directory / "model.safetensors"), honest(where)[2]
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    assert bits(run)[1] == honest(where)[0]


@pytest.mark.parametrize("where", PLACES)
def test_one_answer_given_for_everybody_counts_once(where, run_remotely, loopback, honest):
    plain, client = PLACES[where]
    told = []

    def copied(found, post):
        return dict.fromkeys(found, found[post.client])

    run = run_remotely(plain, post=Hostile(loopback, client, copied), tell=lambda *words: told.append(words))
    assert {round for round, *_ in told} <= {BAD_ROUND}
    assert client not in {who for _, who, _ in told}
    assert finite(run)
    assert bits(run)[1] == honest(where)[0]


def test_what_a_real_client_says_that_it_keeps_is_not_looked_at(run_remotely, loopback):
    """Only simulated clients hand over what they keep, for the checkpoint; a stranger's would be carried along."""
    plain = CASES["algorithm scaffold"] | {"sampling": FULL}

    def kept(found, post):
        answer = found[post.client]
        return found | {post.client: WireMessage(answer.fields, {**answer.arrays, "kept": np.zeros(5, np.float32)})}

    run = run_remotely(plain, post=Hostile(loopback, 3, kept), tell=lambda *words: None)
    tensors = load_file(run.directory / "checkpoint.safetensors")
    assert tensors
    assert not any(name.startswith("memory/") for name in tensors)


@pytest.mark.parametrize(
    ("trouble", "law"),
    [(of_old, "answers a question of round 1"), (as_another, "signed as client 0")],
)
def test_a_simulation_stops_with_one_line(trouble, law, run_remotely, loopback):
    plain, client = PLACES["central"]
    with pytest.raises(SightlineError, match=law) as caught:
        run_remotely(plain, post=Hostile(loopback, client, trouble))
    assert "\n" not in str(caught.value)
