"""Which of the exact paths is fastest here, measured once per machine; the work that an experiment asks for."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sightline.config import Experiment, Local
from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel, probe_inputs
from sightline.models.task import probe_targets
from sightline.training.compiled.kernels import WalkKernel, walk_kernel_for
from sightline.training.compiled.library import library_digest, noise_missing
from sightline.training.dispatch import dense_layers, small_convolutional, stacking_for, worker_for
from sightline.training.dp_sgd import dp_sgd
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast.stacked import width_of
from sightline.training.local_sgd import train_local
from sightline.training.local_work import BY_RULE, Adam, LocalWork, Paths
from sightline.training.machine import keep_measured, recall_measured

SECONDS, ENOUGH = 1.0, 0.2
"""How long one comparison may take, and how long short ones go on; every candidate is tried once, whatever that takes.

Processor seconds: what else the machine does meanwhile decides nothing."""
REPEAT, MOST, STEPS = 5, 50, 2
"""Turns of a comparison after the first one, the most of them, and local steps of a client in each."""
SLOWER = 1.5
"""A candidate whose best time is so many times the best of all is tried no more."""
WORTH = 0.95
"""Another path than the rule's is taken when it needs at most this share of the rule's time."""

Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class MeasuredWork:
    """A kind of work: plain or private steps of a model with batches of one width, and how many clients stand by."""

    model: FlatModel
    work: LocalWork
    width: int
    private: bool
    clients: int = 8

    @property
    def key(self) -> str:
        """What tells this kind of work from others; the model by its layers, wherever it was named."""
        work, model = self.work, self.model
        layers = f"{model.module()!r} {model.input_shape} {model.classes} {model.task.name} {model.kind}"
        optimiser = [
            name for name in ("momentum", "weight_decay", "step_norm", "adam", "compiled") if getattr(work, name)
        ]
        told = "private" if self.private else "plain"
        digest = hashlib.sha256(layers.encode()).hexdigest()[:16]
        name = "-".join([*optimiser, "sgd"])
        return f"{told} {model.parameters} {digest} batch {self.width} clients {self.clients} {name} {work.precision}"

    def run(self, paths: Paths) -> None:
        """A few steps of every client on made-up examples; nobody's data are looked at."""
        shards = [self.made_up_shard()] * self.clients
        work = replace(self.work, paths=paths, epochs=None, steps=STEPS, batch_size=self.width)
        start = self.model.init(np.random.default_rng(0))
        rngs = [np.random.default_rng(client) for client in range(self.clients)]
        if self.private:
            blocks = dp_sgd(self.model, start, shards, work, self.private_settings(rngs))
        else:
            blocks = train_local(self.model, start, shards, work, rngs=rngs)
        for _ in blocks:
            pass

    def made_up_shard(self) -> Shard:
        """Twice as many random examples as a batch holds."""
        size = 2 * self.width
        x, y = probe_inputs(self.model, size), probe_targets(self.model.task, self.model.classes, size)
        return Shard(x.numpy(), y.numpy())

    def private_settings(self, rngs: Sequence[np.random.Generator]) -> DPSGDSettings:
        """Private steps whose batches have the width on average."""
        count = len(rngs)
        return DPSGDSettings(
            clip_norm=1.0, noise_std=[1.0] * count, sample_rates=[0.5] * count, steps=[STEPS] * count,
            divisors=[float(self.width)] * count, sampling_rngs=rngs,
            noise_rngs=[np.random.default_rng(count + client) for client in range(count)],
        )  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One path of one field, and whether it exists for a kind of work: code that is there and has passed its probe."""

    field: str
    path: str
    exists: Callable[[FlatModel, LocalWork, int | None], bool]


def _has_stack(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    stacking = stacking_for(model)
    return stacking is not None and work.precision == "float32" and (width is None or stacking.takes(width))


def _has_loop(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    return small_convolutional(model) is not None


def _has_folded(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    more = work.momentum or work.weight_decay or work.adam is not None or work.step_norm is not None
    return not more and small_convolutional(model) is not None


def _has_compiled_walk(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    plain = work.adam is None and work.precision == "float32" and small_convolutional(model) is not None
    return plain and isinstance(walk_kernel_for(model), WalkKernel)


def _has_grouped(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    return worker_for(model, "grouped") is not worker_for(model)


def _has_compiled_noise(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    return noise_missing() is None


def _always(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    return True


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("plain", "stack", _has_stack),
    Candidate("plain", "loop", _has_loop),
    Candidate("plain", "folded", _has_folded),
    Candidate("plain", "compiled", _has_compiled_walk),
    Candidate("record", "unfold", _always),
    Candidate("record", "grouped", _has_grouped),
    Candidate("noise", "torch", _always),
    Candidate("noise", "compiled", _has_compiled_noise),
)
"""Every path that can be measured, the rule's first in its field."""


def available_paths(
    model: FlatModel, work: LocalWork, *, private: bool, width: int | None = None
) -> dict[str, list[str]]:
    """Field -> the paths that this work could take here. Fields that it does not use are not named.

    Guarantees: on another device than the CPU, and for compiled linear clients, there is nothing to choose.
    """
    if model.device.type != "cpu" or work.compiled:
        return {}
    found: dict[str, list[str]] = {}
    for one in CANDIDATES:
        if (one.field != "plain") is private and one.exists(model, work, width):
            found.setdefault(one.field, []).append(one.path)
    return found


def missing_paths(model: FlatModel, work: LocalWork, paths: Paths) -> dict[str, str]:
    """Field -> the path that these paths take and that does not exist here; the rule's own always does."""
    taken = {name: word for name, word in paths.describe().items() if word != getattr(BY_RULE, name)}
    known = {(one.field, one.path): one for one in CANDIDATES}

    def exists(field: str, path: str) -> bool:
        one = known.get((field, path))
        return one is not None and one.exists(model, work, None)

    return {field: path for field, path in taken.items() if not exists(field, path)}


def compiled_code(paths: Paths) -> str | None:
    """The digest of the compiled code that these paths run, as another build rounds otherwise; None: they run none."""
    return library_digest() if "compiled" in paths.describe().values() else None


def choose_measured(work: MeasuredWork, *, clock: Clock = time.process_time) -> Paths:
    """The fastest paths for this work on this machine: as they were measured once, else measured now and kept.

    Guarantees: where each field has one candidate, nothing is measured, read or written. What was kept is taken only
    while every path of it exists. A run that has begun does not ask: it goes on with the paths that it recorded.
    """
    choices = {
        field: many
        for field, many in available_paths(work.model, work.work, private=work.private, width=work.width).items()
        if len(many) > 1
    }
    if not choices:
        return BY_RULE
    kept = recall_measured(work.key)
    known = None if kept is None else _take_kept(kept, choices)
    if known is not None:
        return known
    chosen, seconds = BY_RULE, {}
    for field, many in choices.items():
        times = compare_paths({path: replace(chosen, **{field: path}) for path in many}, work.run, clock=clock)
        chosen = replace(chosen, **{field: pick_fastest(times)})
        seconds[field] = {path: round(spent, 6) for path, spent in times.items()}
    kept = keep_measured(work.key, {"paths": chosen.describe(), "seconds": seconds}, stale=kept)
    return _take_kept(kept, choices) or chosen


def _take_kept(kept: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> Paths | None:
    """The paths of a kept entry where each of them can be chosen now; None: it is of another state of things."""
    words = kept.get("paths")
    if not isinstance(words, dict) or any(words.get(field) not in many for field, many in choices.items()):
        return None
    return replace(BY_RULE, **{field: words[field] for field in choices})


def compare_paths(
    candidates: Mapping[str, Paths], run: Callable[[Paths], None], *, clock: Clock = time.process_time
) -> dict[str, float]:
    """The best seconds of each candidate, taken in turns; one that is clearly slower is left out of further turns.

    The first turn warms caches up and counts only where it took all the time that there is.
    """
    best: dict[str, float] = {}
    begun, left = clock(), list(candidates)
    for turn in range(MOST + 1):
        for name in left:
            first = clock()
            run(candidates[name])
            spent = clock() - first
            best[name] = min(spent, best[name]) if turn > 1 else spent
        if turn:
            left = [name for name in left if best[name] <= SLOWER * min(best.values())]
        if len(left) < min(2, len(candidates)) or clock() - begun > (ENOUGH if turn >= REPEAT else SECONDS):
            break
    return best


def pick_fastest(seconds: Mapping[str, float]) -> str:
    """The fastest; the first one, the rule's, unless another is faster by more than measuring is wrong.

    >>> pick_fastest({"stack": 1.0, "loop": 0.97}), pick_fastest({"stack": 1.0, "loop": 0.8})
    ('stack', 'loop')
    """
    rule, fastest = next(iter(seconds)), min(seconds, key=lambda path: seconds[path])
    return rule if seconds[fastest] > WORTH * seconds[rule] else fastest


VARIABLE = "SIGHTLINE_PATHS"
SIDE_BY_SIDE, IN_TURN = 8, 2
"""Clients of a comparison: where they can be stacked, and where each is trained by itself."""


def local_work(experiment: Experiment, paths: Paths = BY_RULE) -> LocalWork:
    """The work of one client in one round."""
    local = experiment.local
    return LocalWork(
        learning_rate=local.learning_rate,
        momentum=local.momentum,
        batch_size=None if experiment.samples_scheme == "full" else local.batch_size,
        epochs=local.epochs,
        steps=local.steps,
        weight_decay=local.weight_decay,
        compiled=local.compiled,
        adam=_adam_of(local),
        precision=local.precision,
        paths=paths,
    )


def _adam_of(local: Local) -> Adam | None:
    """The settings of Adam, where the experiment asks for it."""
    if not local.adaptive:
        return None
    plain = Adam(decoupled=local.optimizer == "adamw")
    return replace(plain, betas=local.betas or plain.betas, eps=local.adam_eps or plain.eps)


def wants_measuring(experiment: Experiment) -> bool:
    """Whether paths and processes are chosen by measuring: `SIGHTLINE_PATHS`, else `local.paths`, else yes."""
    word = os.environ.get(VARIABLE) or experiment.local.paths or "measured"
    if word not in ("measured", "rule"):
        invalid(VARIABLE, word, "is measured or rule", "unset it to let the experiment file decide")
    return word == "measured"


def measured_work(experiment: Experiment, model: FlatModel, sizes: Sequence[int]) -> MeasuredWork | None:
    """What of the experiment's local training is worth a comparison; None where no client takes steps of its own.

    Guarantees: a function of the settings and of numbers of examples, which are public; no data are looked at.
    """
    privacy, work = experiment.privacy, local_work(experiment)
    private = privacy.unit == "sample" and privacy.mechanism == "gaussian"
    if (private and privacy.place == "server") or not len(sizes):
        return None
    examples = max(1, int(np.median(sizes)))
    width = min(experiment.local.batch_size, examples) if private else width_of(examples, work)
    if private:
        together = dense_layers(model) is not None
    else:
        stacking = stacking_for(model)
        together = stacking is not None and stacking.takes(width)
    clients = min(len(sizes), SIDE_BY_SIDE if together else IN_TURN)
    return MeasuredWork(model, work, width, private, clients)


def choose_paths(experiment: Experiment, model: FlatModel, sizes: Sequence[int]) -> Paths:
    """The paths of a new run: the fastest on this machine, or the rule's where the setting or the variable says so.

    Parts of models are trained by rule, and so is everything on another device than the CPU.
    """
    if not wants_measuring(experiment) or experiment.algorithm.split is not None or model.device.type != "cpu":
        return BY_RULE
    torch.set_num_threads(1)  # as training does
    work = measured_work(experiment, model, sizes)
    return BY_RULE if work is None else choose_measured(work)
