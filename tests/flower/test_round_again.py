"""A round that real nodes had begun is done again: what they have seen of it stays counted, and gets other noise."""

import numpy as np
import pytest

from sightline.accounting import epsilon
from tests.flower.cases import changed, privacy

SEGMENTS = changed(
    rounds=1,
    topology={"kind": "tree", "subnets": 2, "trusted": 1.0},
    algorithm={"name": "h2fdp", "local_aggregation": 2},
    local={"steps": 4, "batch_size": 8, "learning_rate": 0.2},
    sampling={"clients": {"scheme": "poisson", "rate": 0.9}},
    privacy=privacy("client", "edge", noise_multiplier=5.0),
)
LATE = 1


class Begun:
    """A post that keeps where devices go on after the first segment; one client is late until the server restarts."""

    def __init__(self, post):
        self.post, self.restarted, self.started = post, False, {}

    def ask(self, letters, group):
        found = dict(self.post.ask(letters, group))
        if any(letter.fields["use"] for letter in letters.values()):
            self.started.update({client: letter.arrays["start"] for client, letter in letters.items()})
            if not self.restarted:
                raise KeyboardInterrupt
        elif not self.restarted:
            found[LATE] = "no answer within 5 seconds"
        return found

    def close(self):
        pass


def again(run_remotely, loopback):
    """(where devices went on before the crash, where they went on after it, the run)."""
    post = Begun(loopback)
    with pytest.raises(KeyboardInterrupt):
        run_remotely(SEGMENTS, post=post, tell=lambda *words: None)
    before, post.started, post.restarted = post.started, {}, True
    run = run_remotely(SEGMENTS, post=post, tell=lambda *words: None, resume=True)
    return before, post.started, run


def test_the_noise_does_not_cancel(run_remotely, loopback):
    """Updates have norm 0.16 at most, noise of 5 x 0.16 lies on 63 numbers. One noise twice leaves the late update."""
    before, after, _ = again(run_remotely, loopback)
    moved = max(np.linalg.norm(before[client] - after[client]) for client in before.keys() & after.keys())
    expected = 0.9 * 3
    assert moved * expected > 10 * 0.16


def test_what_was_seen_stays_counted(run_remotely, loopback):
    _, _, run = again(run_remotely, loopback)
    whole = run_remotely(SEGMENTS, out="whole", tell=lambda *words: None)
    seen, planned = (one.ledger.composition("client-0", "client-1") for one in (run, whole))
    assert sum(seen.values()) > sum(planned.values())
    assert epsilon(seen, 1e-3) > epsilon(planned, 1e-3)


def test_a_round_of_which_nothing_was_seen_is_done_again_as_it_was(run_remotely, loopback):
    """One question a round: its answer goes into the next round's question, and there was none."""
    plain = changed(rounds=2)

    class Crashing:
        def __init__(self, post):
            self.post, self.crashes = post, [2]

        def ask(self, letters, group):
            found = self.post.ask(letters, group)
            if self.crashes and int(group.split("/")[1]) == self.crashes[0]:
                self.crashes.pop()
                raise KeyboardInterrupt
            return found

        def close(self):
            pass

    post = Crashing(loopback)
    with pytest.raises(KeyboardInterrupt):
        run_remotely(plain, post=post, tell=lambda *words: None)
    run = run_remotely(plain, post=post, tell=lambda *words: None, resume=True)
    whole = run_remotely(plain, out="whole", tell=lambda *words: None)
    assert [release.body() for release in run.ledger] == [release.body() for release in whole.ledger]
