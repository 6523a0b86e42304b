"""`python -m tests.hostile.site_sequences 10000 [SEED]`: random sequences of questions to a site in two worlds."""

import json
import logging
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from sightline.errors import SightlineError
from sightline.ledger import Ledger
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.budget import LifetimeBudget
from sightline.runtimes.site.state import RunStore
from tests.hostile.site_worlds import (
    ALPHA,
    CLAIMS,
    DIMENSION,
    SMALL_START,
    Worlds,
    digest_of,
    make_template,
    watched_draws,
)

LONGEST_REFUSAL = 400
KILLS = {
    "before anything is written": (RunStore, "begin"),
    "before the ledger": (Ledger, "knows_joint"),  # asked of the site's own ledger only
    "before the answer is kept": (RunStore, "put_answer"),
    "before the answer is counted": (LifetimeBudget, "advance"),
}


class Leak(AssertionError):
    """The site told what it must not, or did not do what it must."""


class Killed(BaseException):
    """The end of the site's process."""


@dataclass(frozen=True)
class Question:
    """A message, and whether it has the form of a planned call."""

    fields: dict
    arrays: dict
    sound: bool = True

    @property
    def run(self):
        """Whose run it belongs to."""
        return self.fields["digest"], self.fields["run"]

    @property
    def place(self):
        """Which call it asks for."""
        return self.fields["round"], self.fields["use"]


@dataclass
class Progress:
    """What the attacker knows of one run."""

    id: str
    last: tuple = (0, -1)
    asked: dict = field(default_factory=dict)
    """Place -> the start of the only question that may be answered there."""
    values: dict = field(default_factory=dict)
    """Place -> the answer, in both worlds."""
    kept: np.ndarray = field(default_factory=lambda: np.zeros(DIMENSION, np.float32))
    hidden: bool = False
    """Whether the site made an answer that the attacker has not got."""


@lru_cache
def _digests(unit):
    return {digest_of(claim): claim for claim in CLAIMS[unit]}


class Attack:
    """One sequence of questions; raises Leak as soon as the answers are not a function of approved releases."""

    def __init__(self, worlds: Worlds, folder: Path, rng: np.random.Generator) -> None:
        self.worlds, self.folder, self.rng = worlds, folder, rng
        self.claims = _digests(worlds.unit)
        of = {digest: worlds.sites[0].approvals.of(digest) for digest in self.claims}
        self.approvals = {one.id: one for some in of.values() for one in some}
        self.free = {digest: [one.id for one in some] for digest, some in of.items()}
        self.plans = {digest: some[0].calls for digest, some in of.items()}
        self.runs: dict[tuple[str, str], Progress] = {}
        self.asked: list[Question] = []
        self.snapshots: list[tuple[Path, int]] = []
        self.counts: Counter[str] = Counter()

    def play(self, steps: int) -> Counter:
        """Take `steps` random steps and return their counts."""
        rules = [self.ask_next] * 6 + [
            self.skip_ahead,
            self.repeat,
            self.repeat,
            self.another_start,
            self.another_start,
        ]
        rules += [self.out_of_order, self.unknown_digest, self.second_run, self.strange_words, self.bad_vectors]
        rules += [self.reopen, self.kill, self.kill, self.back_up, self.roll_back, self.roll_back, self.approve_again]
        for _ in range(steps):
            rule = rules[self.rng.integers(len(rules))]
            self.counts[rule.__name__] += 1
            rule()
        self.check_budget()
        return self.counts

    # questions

    def question(self, call, *, digest, run, start=None, **more) -> Question:
        fields = {
            "digest": digest,
            "run": run,
            "call": call.kind,
            "round": call.round,
            "use": call.use,
            "part": call.part,
        }
        if start is None:
            scale = self.rng.choice([0.0, 0.1, 1.0, 50.0])
            start = (scale * self.rng.normal(size=DIMENSION)).astype(np.float32)
        return Question(fields | more, {"start": start})

    def pick_run(self) -> tuple[str, str]:
        digest = list(self.claims)[self.rng.integers(len(self.claims))]
        return digest, "ab"[self.rng.integers(2)] if self.claims[digest] is CLAIMS[self.worlds.unit][0] else "a"

    def later_calls(self, digest, run):
        progress = self.runs.get((digest, run))
        return [call for call in self.plans[digest] if progress is None or call.position > progress.last]

    def next_question(self, skip=0):
        digest, run = self.pick_run()
        calls = self.later_calls(digest, run)
        return self.question(calls[skip], digest=digest, run=run) if len(calls) > skip else None

    def old_question(self):
        return self.asked[self.rng.integers(len(self.asked))] if self.asked else None

    # rules

    def ask_next(self):
        self.ask(self.next_question())

    def skip_ahead(self):
        self.ask(self.next_question(skip=1))

    def repeat(self):
        self.ask(self.asked[-1] if self.asked and self.rng.random() < 0.7 else self.old_question())

    def another_start(self):
        old = self.old_question()
        if old is not None:
            moved = old.arrays["start"] + np.float32(self.rng.choice([1e-6, 1.0]))
            self.ask(Question(old.fields, {"start": moved}))

    def out_of_order(self):
        digest, run = self.pick_run()
        call = self.plans[digest][self.rng.integers(len(self.plans[digest]))]
        self.ask(self.question(call, digest=digest, run=run))

    def unknown_digest(self):
        question = self.next_question()
        if question is not None:
            other = str(self.rng.choice(["0" * 64, "", "../../x", question.fields["digest"][:32], "?"]))
            self.ask(Question(question.fields | {"digest": other}, question.arrays, sound=False))

    def second_run(self):
        question = self.next_question()
        if question is not None:
            self.ask(Question(question.fields | {"run": "another"}, question.arrays))

    def strange_words(self):
        question = self.next_question()
        if question is None:
            return
        if self.rng.random() < 0.5:
            more = {
                "noise": 0.0,
                "clip_norm": 1e9,
                "memory": {"rule": "x"},
                "plan": {"steps": 9},
                "experiment": "x = 1",
            }
            self.ask(Question(question.fields | more, question.arrays))
            return
        wrong = [{"round": True}, {"round": "1"}, {"round": 0}, {"round": 99}, {"use": 1}, {"part": 1}, {"use": None},
                 {"round": 1.0}, {"call": "train"}, {"call": "dp_sgd"}, {"call": "gradient_sums"}, {"call": None},
                 {"round": -1}, {"call": ["leaving"]}, {"round": 10**30}]  # fmt: skip
        bent = wrong[self.rng.integers(len(wrong))]
        self.ask(Question(question.fields | bent, question.arrays, sound=False))

    def bad_vectors(self):
        question = self.next_question()
        if question is None:
            return
        start = question.arrays["start"]
        wrong = [
            start[:-1],
            start[None],
            np.full_like(start, np.nan),
            np.full_like(start, 1e30),
            start.astype(int),
            None,
        ]
        bent = wrong[self.rng.integers(len(wrong))]
        self.ask(Question(question.fields, {} if bent is None else {"start": bent}, sound=False))

    def reopen(self):
        self.worlds.open()

    def kill(self):
        """End the site's process while it answers, then start it again."""
        question = self.next_question()
        when = list(KILLS)[self.rng.integers(len(KILLS))]
        if question is None or not self.expected(question):
            return
        with _killing(*KILLS[when]):
            answers, _ = self.worlds.each(lambda site: self.answer_or_end(site, question))
        self.require(answers == [None, None], f"killed {when}, and still answered")
        self.worlds.open()
        if when != "before anything is written":
            progress = self.begin(question)
            if when == "before the answer is counted":
                progress.hidden = True
                self.worlds.align(progress.id)
        self.asked.append(question)

    def back_up(self):
        if len(self.snapshots) < 2:
            place = self.folder / f"snapshot-{len(self.snapshots)}"
            self.worlds.save(place)
            self.snapshots.append((place, self.number()))

    def roll_back(self):
        """Put an older state in its place: it answers nothing. Then the newest again."""
        older = [place for place, number in self.snapshots if number < self.number()]
        if not older:
            return
        newest = self.folder / f"newest-{self.counts.total()}"
        self.worlds.save(newest)
        self.worlds.restore(older[self.rng.integers(len(older))])
        for question in (self.next_question(), self.old_question()):
            if question is not None:
                answers, _ = self.worlds.each(lambda site, asked=question: self.answer_or_end(site, asked))
                self.check_refusal(question, answers, why="a rolled-back state answered")
        self.worlds.keep_budget(newest)
        single = digest_of(CLAIMS[self.worlds.unit][1])  # of another, a free approval may be used, as was reserved
        for old in [one for one in self.asked if one.fields["digest"] == single][-3:]:
            if old.run in self.runs and old.place in self.runs[old.run].values:
                moved = Question(old.fields, {"start": old.arrays["start"] + np.float32(0.5)})  # asked by no other rule
                answers, _ = self.worlds.each(lambda site, asked=moved: self.answer_or_end(site, asked))
                self.check_refusal(moved, answers, why="a state that is old but for its budget answered again")
        self.worlds.restore(newest)

    def approve_again(self):
        if self.rng.random() < 0.2 and self.counts["approved again"] < 1:
            self.counts["approved again"] += 1
            first = CLAIMS[self.worlds.unit][0]
            made = self.worlds.approve(first.plain)
            self.require(made[0].id == made[1].id, "approvals differ")
            self.approvals[made[0].id] = made[0]
            self.free[made[0].digest].append(made[0].id)

    # the law

    def expected(self, question) -> bool:
        """Whether the question is to be answered."""
        if not question.sound:
            return False
        progress = self.runs.get(question.run)
        if progress is None:
            return bool(self.free[question.fields["digest"]])
        start = question.arrays["start"].tobytes()
        if question.place > progress.last:
            return True
        held = question.place == progress.last or question.place in progress.values
        return held and question.place[0] == progress.last[0] and progress.asked[question.place] == start

    def begin(self, question) -> Progress:
        digest = question.fields["digest"]
        if question.run not in self.runs:
            self.runs[question.run] = Progress(self.free[digest].pop(0))
        progress = self.runs[question.run]
        if question.place > progress.last:
            progress.last = question.place
            progress.asked[question.place] = question.arrays["start"].tobytes()
        return progress

    def ask(self, question) -> None:
        """Ask both worlds, and check all that can be checked."""
        if question is None:
            return
        answers, drawn = self.worlds.each(lambda site: self.answer_or_end(site, question))
        if not self.expected(question):
            self.check_refusal(question, answers, why="answered, and had to be refused")
            return
        self.counts["answers"] += 1
        self.asked.append(question)
        self.require(answers[0].fields == answers[1].fields, f"words differ: {[one.fields for one in answers]}")
        self.require("refused" not in answers[0].fields, f"a legal question: {answers[0].fields}")
        self.require(answers[0].fields["rejected"] is False, "says what the data did")
        progress, values = self.begin(question), [answer.arrays["value"] for answer in answers]
        if question.place in progress.values:
            same = all(a.tobytes() == b.tobytes() for a, b in zip(progress.values[question.place], values, strict=True))
            self.require(same, "one call has two answers")
            return
        self.check_values(question, progress, values, drawn)
        self.check_ledger()

    def check_values(self, question, progress, values, drawn) -> None:
        claim = self.claims[question.fields["digest"]]
        apart = float(np.linalg.norm(values[0].astype(float) - values[1].astype(float)))
        slack = 1e-5 * claim.distance + SMALL_START * float(np.linalg.norm(question.arrays["start"]))
        self.require(apart <= claim.distance + slack, f"distance {apart:.3g}, claimed {claim.distance:.3g}")
        if claim.poisson:
            self.counts["subject drawn" if drawn else "subject not drawn"] += 1
            same = values[0].tobytes() == values[1].tobytes()
            self.require(drawn or same, f"the subject was not drawn, and the answers differ by {apart:.3g}")
            progress.kept = progress.kept - np.float32(ALPHA) * values[0]
            if not progress.hidden:
                held, noised = self.worlds.store(progress.id).kept("gradient")
                law = "what is kept does not follow from what was released"
                self.require(noised and np.allclose(held.numpy(), progress.kept, atol=1e-4), law)
            self.worlds.align(progress.id)
            values = [values[0], values[0]]
        for other in self.runs.values():
            for before, _ in other.values.values():
                if before.shape == values[0].shape:
                    between = float(np.linalg.norm(before.astype(float) - values[0].astype(float)))
                    self.require(between > claim.reach, f"two answers differ by {between:.3g}: the same noise")
        progress.values[question.place] = tuple(values)
        self.counts["values"] += 1

    def check_refusal(self, question, answers, *, why) -> None:
        self.counts["refusals"] += 1
        texts = [None if answer is None else answer.fields.get("refused") for answer in answers]
        self.require(
            all(text is not None and not answer.arrays for text, answer in zip(texts, answers, strict=True)), why
        )
        # a counter is named by its path, which differs between the two folders
        texts = [text.replace(str(folder), "") for text, folder in zip(texts, self.worlds.folders, strict=True)]
        self.require(texts[0] == texts[1], f"refusals differ: {texts}")
        one_line = 0 < len(texts[0]) <= LONGEST_REFUSAL and "\n" not in texts[0] and "site's log" not in texts[0]
        self.require(one_line, f"no clear line: {texts[0]}")

    def check_ledger(self) -> None:
        """Every answer is in the ledger, and all of the ledger in the plan that was approved."""
        for site in self.worlds.sites:
            with site._read_ledger() as ledger:
                releases = list(ledger)
            for progress in self.runs.values():
                own = [one for one in releases if one.joint.startswith(f"{progress.id}, ")]
                missing = {f"{progress.id}, {r}.{u}" for r, u in progress.values} - {one.joint for one in own}
                self.require(not missing, f"not in the ledger: {missing}")
                more = Counter(one.event for one in own) - Counter(self.approvals[progress.id].composition)
                self.require(not more, f"beyond what was approved: {more}")

    def check_budget(self) -> None:
        """Every run that was answered is within the budget for life."""
        for site in self.worlds.sites:
            status = site.budget.status()
            reserved = {one.approval for one in status.reservations}
            self.require(reserved == set(self.approvals), "approved, and not reserved")
            dearest = max(one.epsilon for one in self.approvals.values())
            self.require(dearest * (1 - 1e-9) <= status.spent <= status.epsilon, "the budget counts something else")

    def number(self) -> int:
        """Of the newest state."""
        return self.worlds.sites[0].budget.check()

    def answer_or_end(self, site, question):
        try:
            answer = site.answer(WireMessage(question.fields, question.arrays))
        except Killed:
            return None
        except SightlineError as error:
            raise Leak(f"raised: {error}") from None
        return WireMessage.from_bytes(answer.to_bytes())

    def require(self, good, what) -> None:
        if not good:
            raise Leak(what)


@contextmanager
def _killing(owner, name):
    before = getattr(owner, name)

    def end(*_, **__):
        raise Killed

    setattr(owner, name, end)
    try:
        yield
    finally:
        setattr(owner, name, before)


def play_sequences(templates: Path, units, seeds, *, steps=12) -> Counter:
    """Play a sequence per seed, in turn for each unit; raises Leak with the seed."""
    total: Counter[str] = Counter()
    with watched_draws() as draws:
        for seed in seeds:
            unit = units[seed % len(units)]
            with tempfile.TemporaryDirectory(dir=templates) as folder:
                attack = Attack(Worlds(templates / unit, Path(folder), unit, draws), Path(folder),
                                np.random.default_rng([seed, steps]))  # fmt: skip
                try:
                    total += attack.play(steps)
                except Leak as leak:
                    raise Leak(f"unit={unit}, seed={seed}: {leak}") from leak
            total["sequences"] += 1
    return total


def main() -> int:
    """Play them and count; the first leak ends it with its seed."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    logging.getLogger("sightline.site").setLevel(logging.CRITICAL)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for unit in CLAIMS:
            make_template(Path(folder), unit, root=seed)
        found = play_sequences(Path(folder), tuple(CLAIMS), range(seed, seed + count), steps=12)
    print(json.dumps(dict(found.most_common()) | {"seconds": round(time.perf_counter() - began)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
