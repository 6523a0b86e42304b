"""A real site: its own data, noise and budget; it answers only what its budget allows, and stores each answer first."""

import fcntl
import hashlib
import logging
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from sightline import accounting, engine
from sightline.config import FACTORY, Experiment, parse
from sightline.engine import BuiltExperiment
from sightline.errors import BudgetExhausted, SightlineError, invalid, refuse
from sightline.events import Clear
from sightline.ledger import GENESIS, Ledger, LedgerDamaged, Release, SqliteStore, connect_to_write
from sightline.mechanisms import CallId, Mechanism, NoisedBy, ReleaseContext, Updates
from sightline.mechanisms.contract import only_client
from sightline.randomness import Streams, write_secret
from sightline.runtimes.remote.client_executor import ClientSide, Result, read_choice
from sightline.runtimes.remote.message import CHOOSE, LEAVING, Task, WireMessage, own_tensor
from sightline.runtimes.site.policy import POLICY, federation_of, kind_of, read_data, read_policy
from sightline.runtimes.site.process import run_within
from sightline.topology import client_name

SITE_STORE = "shelf.secret"
RUNS = 8
"""Of so many runs the site remembers the last answer and what its client keeps."""


class SiteStore:
    """The last answer of every run, and per run and memory what was kept before and after the round it belongs to.

    Guarantees: the file is replaced whole, so that after a crash it holds the state before the answer or after it; a
    round that is asked again begins from what was kept before it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_STORE

    def answer_to(self, asked: bytes, run: str) -> WireMessage | None:
        """The answer that was given to this very question, when it was the run's last one."""
        found, place = self._read_file(), _answer_name(run)
        last = found.words.get("answers", {}).get(place)
        if last is None or last["asked"] != asked.hex():
            return None
        start = f"answer/{place}/"
        arrays = {name.removeprefix(start): a for name, a in found.arrays.items() if name.startswith(start)}
        return WireMessage(last["words"], arrays)

    def kept(self, run: str, memory: str, at: CallId) -> Tensor | None:
        """What the client kept when the round began; None before its first."""
        found = self._read_file()
        mark = found.words.get("marks", {}).get(f"{run}/{memory}")
        if mark is None:
            return None
        again = [at.round, at.use] == mark
        array = found.arrays.get(f"{'before' if again else 'after'}/{run}/{memory}")
        return None if array is None else own_tensor(array)

    def fingerprint(self) -> bytes:
        """Changes whenever anything in the store does."""
        return hashlib.sha256(self._path.read_bytes() if self._path.exists() else b"").digest()

    def charged_releases(self) -> tuple[int, str]:
        """How many releases the site's ledger held when it last answered, and the hash of the last one."""
        releases, head = self._read_file().words.get("charged", (0, GENESIS))
        return int(releases), str(head)

    def put_answer(
        self, asked: bytes, answer: WireMessage, *, run: str, memory: str, at: CallId, kept: Tensor | None,
        charged: tuple[int, str],
    ) -> None:  # fmt: skip
        """Put away an answer, what the client keeps from now on, and what the ledger must hold from now on."""
        found, key, place = self._read_file(), f"{run}/{memory}", _answer_name(run)
        answers = {name: one for name, one in found.words.get("answers", {}).items() if name != place}
        answers = dict([*answers.items()][1 - RUNS :]) | {place: {"asked": asked.hex(), "words": dict(answer.words)}}
        arrays = {name: array for name, array in found.arrays.items() if _is_kept(name, answers, place)}
        marks = dict(found.words.get("marks", {}))
        if kept is not None:
            before = self.kept(run, memory, at)
            arrays.pop(f"before/{key}", None)
            if before is not None:
                arrays[f"before/{key}"] = before.numpy()
            arrays[f"after/{key}"] = kept.numpy()
            marks.pop(key, None)
            marks[key] = [at.round, at.use]
        for old in list(marks)[:-RUNS]:
            del marks[old]
            arrays = {name: array for name, array in arrays.items() if name.partition("/")[2] != old}
        arrays |= {f"answer/{place}/{name}": array for name, array in answer.arrays.items()}
        write_secret(
            self._path, WireMessage({"answers": answers, "marks": marks, "charged": charged}, arrays).to_bytes()
        )

    def _read_file(self) -> WireMessage:
        return WireMessage.from_bytes(self._path.read_bytes()) if self._path.exists() else WireMessage()


def _answer_name(run: str) -> str:
    """Where a run's last answer lies: a name that no run can choose."""
    return hashlib.sha256(run.encode()).hexdigest()[:32]


def _is_kept(name: str, answers: Mapping[str, object], replaced: str) -> bool:
    """Whether an array stays when the answer at a place is replaced: what is kept does, and other runs' answers."""
    kind, _, rest = name.partition("/")
    place = rest.partition("/")[0]
    return kind != "answer" or (place in answers and place != replaced)


LOG = logging.getLogger("sightline.site")
BUDGET = "budget.sqlite"
HELLO = "hello"
SERVER, PUBLIC = "server", "public"


class Site:
    """One client that trusts its own folder and nothing else: site.toml, the data, and `state/`.

    Guarantees: a release is durable in the site's own ledger before its value exists; no value leaves that would bring
    the site's epsilon, over all runs and all servers, above its policy's; noise and sampling draws come from the
    operating system and are never used for two different values; the same question gets the same answer, uncharged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.policy = folder, read_policy(folder)
        self.data = read_data(folder, self.policy)
        if self.policy.unit == "sample" and not self.policy.allow_large_delta:
            accounting.refuse_large_delta(f"{POLICY}: delta", self.policy.delta, len(self.data.train), "examples")
        self._state = folder / "state"
        self._state.mkdir(mode=0o700, exist_ok=True)
        self._root = Streams.from_operating_system(self._state / "noise-root.secret")
        self._store = SiteStore(self._state)
        self._built = lru_cache(maxsize=2)(self._build_experiment)

    def answer(self, message: WireMessage) -> WireMessage:
        """The answer to a question, or in one line why there is none."""
        try:
            if message.words.get("call") == HELLO:
                return self.hello()
            with self._hold_lock():
                answer = self._answer_task(message)
            return message.reply(self.policy.client, answer.words, answer.arrays)
        except SightlineError as error:
            return WireMessage({"refused": str(error)})
        except Exception as error:
            LOG.exception("a question could not be answered")
            return WireMessage(
                {"refused": f"{type(error).__name__}; the site's log says more"}
            )  # the text may hold data

    def hello(self) -> WireMessage:
        """The public facts of a site: its number, and how much data of what kind it has."""
        train, policy = self.data.train, self.policy
        shape = [int(size) for size in train.x.shape[1:]]
        facts = {"client": policy.client, "examples": len(train), "shape": shape, "kind": str(kind_of(train))}
        return WireMessage(facts | {"classes": policy.classes, "vocabulary": policy.vocabulary})

    def spent(self) -> float:
        """The epsilon that the site has spent so far, over all runs."""
        with self._read_ledger() as (ledger, _):
            return ledger.worst_epsilon(self._all_observers(), self.policy.delta)

    def _answer_task(self, message: WireMessage) -> WireMessage:
        asked = hashlib.sha256(message.without_mark().to_bytes()).digest()
        run = str(message.words.get("run", ""))
        before = self._store.answer_to(asked, run)
        if before is not None:
            return before
        setting = self._built(str(message.words.get("experiment")))
        task = Task.read(message, self.policy.client)
        if task.start.shape != (setting.model.parameters,):
            invalid("start", tuple(task.start.shape), f"this model has {setting.model.parameters} parameters")
        memory = "" if task.memory is None else task.memory.name
        old = self._store.kept(run, memory, task.at)
        draws = hashlib.sha256(asked + self._store.fingerprint() + self._data_digest()).digest()
        side = ClientSide(setting, Streams.from_seed(setting.experiment.seed), Streams(self._root.root + draws))
        updates = side.updates_for(task, old)
        with self._read_ledger() as (ledger, store):
            context = side.release_context(task, next_id=len(ledger))
            mechanism = side.mechanism(message.words.get("noise"), context)
            claims = self._own_claims(task, updates, context, mechanism)
            self._record_claims(ledger, claims, name=draws.hex())
            charged = (len(ledger), store.head())
        result = self._compute_output(side, task, updates, context, mechanism)
        clear = any(release.event == Clear() for release in claims)
        # that an update was not finite depends on the data: said only where the update itself is handed over
        answer = WireMessage({"rejected": result.rejected and clear}, {"value": result.value.numpy()})
        self._store.put_answer(asked, answer, run=run, memory=memory, at=task.at, kept=result.kept, charged=charged)
        return answer

    def _compute_output(
        self, side: ClientSide, task: Task, updates: Updates, context: ReleaseContext, mechanism: Mechanism
    ) -> Result:
        """The value; of a failure nothing is told but that it happened, since its words may hold data."""
        try:
            work = partial(side.compute_task, task, updates, context, mechanism)
            return run_within(self.policy.largest_seconds, work)
        except Exception:
            LOG.exception("an answer could not be computed")
            raise SightlineError("answer=none: the site could not compute it; the site's log says more") from None

    def _own_claims(
        self, task: Task, updates: Updates, context: ReleaseContext, mechanism: Mechanism
    ) -> Sequence[Release]:
        """What is about to leave, as the site itself sees it; the server's opinion does not count.

        Only what the mechanism lets members noise is private before it leaves; all else leaves without noise.
        """
        everyone = frozenset({SERVER, PUBLIC})
        if task.call == CHOOSE:
            return [replace(release, audience=everyone) for release in read_choice(task).claim_choices(context)]
        if task.call == LEAVING and mechanism.noised_by(context) is NoisedBy.CLIENT:
            return [replace(release, audience=everyone) for release in mechanism.claim_each(updates, context)]
        subject, what = only_client(self.policy.client), f"{task.call}: handed to the server without noise"
        event, audience = Clear(), frozenset({SERVER})
        source = client_name(self.policy.client)
        return [context.make_release(source=source, event=event, audience=audience, what=what, subjects=subject)]

    def _record_claims(self, ledger: Ledger, claims: Sequence[Release], *, name: str) -> None:
        """Write the claims to the site's ledger, unless they would exceed its budget or were written before a crash."""
        if ledger.knows_joint(name):
            return
        policy = self.policy
        epsilon = ledger.worst_epsilon(self._all_observers(), policy.delta, planned=claims)
        if not epsilon <= policy.epsilon:
            clear = any(release.event == Clear() for release in claims)
            why = "has no noise and this site does not trust the server" if clear else f"would cost {epsilon:.4g}"
            at = f"at delta={policy.delta:g} per {policy.unit}"
            raise BudgetExhausted(f"epsilon={policy.epsilon:g} {at}: the answer {why}; the site keeps it to itself")
        ledger.append([replace(release, joint=name) for release in claims])

    def _all_observers(self) -> frozenset[str]:
        return frozenset({PUBLIC}) if self.policy.trust_server else frozenset({PUBLIC, SERVER})

    @contextmanager
    def _read_ledger(self) -> Iterator[tuple[Ledger, SqliteStore]]:
        """What the site has let go of; refused when it lacks something, since the budget would look unspent."""
        with closing(connect_to_write(self._state / BUDGET)) as connection:
            store = SqliteStore(connection)
            if not store.vouches_for(*self._store.charged_releases()):
                raise LedgerDamaged(f"state={BUDGET}: it lacks answers that this site gave; bring the newest one back")
            participants = {client_name(self.policy.client), SERVER, PUBLIC}
            yield Ledger.open_stored(store, participants=participants), store

    def _build_experiment(self, text: str) -> BuiltExperiment:
        experiment = self.policy.with_arithmetic(self._admit_experiment(text))
        if self.policy.client >= experiment.data.clients:
            law = f"the experiment has {experiment.data.clients} clients, numbered from 0"
            invalid("site.client", self.policy.client, law)
        facts = {"classes": self.policy.classes, "vocabulary": self.policy.vocabulary}
        federation = federation_of(self.data, self.policy.client, experiment.data.clients, **facts)
        start = experiment.model.init  # it came with the question: the vector, and nothing else
        blank = experiment.model_copy(update={"model": experiment.model.model_copy(update={"init": None})})
        setting = engine.build_experiment(blank, federation=federation)
        if start is not None and setting.model.constants:
            first = next(iter(setting.model.constants))
            law = f"frozen tensors and buffers do not travel, and this site has its own {first!r}"
            refuse("model.init", start, law, "let the factory read them from a file that every site has")
        return setting

    def _admit_experiment(self, text: str) -> Experiment:
        try:
            experiment = parse(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            invalid("experiment", "message", "is not TOML")
        privacy, policy = experiment.privacy, self.policy
        if (privacy.unit, privacy.adjacency) != (policy.unit, policy.adjacency):
            law = f"this site's budget is for unit={policy.unit}, adjacency={policy.adjacency}"
            refuse("privacy.unit", f"{privacy.unit}/{privacy.adjacency}", law, "ask the site, or change the experiment")
        if policy.unit == "client" and not policy.allow_large_delta:
            accounting.refuse_large_delta(f"{POLICY}: delta", policy.delta, experiment.data.clients, "clients")
        if experiment.sampling.samples is not None and experiment.sampling.samples.scheduled:
            law = "a site samples afresh for every answer, and schedules need the same for all rounds"
            refuse("sampling.samples.scheme", experiment.samples_scheme, law, 'use scheme = "poisson"')
        if FACTORY.fullmatch(experiment.model.name) and not policy.own_code:
            refuse(
                "model.name", experiment.model.name, "this site runs no code that it has not allowed", "own_code = true"
            )
        return experiment

    def _data_digest(self) -> bytes:
        train = self.data.train
        return hashlib.sha256(train.x.tobytes() + train.y.tobytes()).digest()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """One answer at a time, whatever processes work for this site."""
        handle = os.open(self._state / "site.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
