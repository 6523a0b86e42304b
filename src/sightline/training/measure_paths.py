"""Measure once per machine which exact path is fastest, and derive the local work of an experiment."""

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
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast.stacked import width_of
from sightline.training.local_training import dp_sgd, train_local
from sightline.training.local_work import BY_RULE, Adam, LocalWork, Paths
from sightline.training.machine import keep_measured, recall_measured

# The choice is a function of settings, numbers of examples and the machine. It must not depend on private data: paths
# decide on the last bits of everything that is released.
SECONDS, ENOUGH = 1.0, 0.2
"""Time limit of one comparison, and how long short ones continue; every candidate runs at least once.

Processor seconds, so other load on the machine does not decide.
"""
REPEAT, MOST, STEPS = 5, 50, 2
"""Turns of a comparison after the first, the most turns, and local steps of a client in each."""
SLOWER = 1.5
"""A candidate whose best time is this many times the overall best is dropped."""
WORTH = 0.95
"""Another path replaces the default only if it needs at most this share of the default's time."""

Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class MeasuredWork:
    """A kind of work: plain or private steps of a model with batches of one width, for a number of clients."""

    model: FlatModel
    work: LocalWork
    width: int
    private: bool
    clients: int = 8

    @property
    def key(self) -> str:
        """Cache key of this kind of work; the model is identified by its layers, not its name."""
        work, model = self.work, self.model
        layers = f"{model.module()!r} {model.input_shape} {model.classes} {model.task.name} {model.kind}"
        optimiser = [
            name for name in ("momentum", "weight_decay", "step_norm", "adam", "compiled") if getattr(work, name)
        ]
        kind = "private" if self.private else "plain"
        digest = hashlib.sha256(layers.encode()).hexdigest()[:16]
        name = "-".join([*optimiser, "sgd"])
        return f"{kind} {model.parameters} {digest} batch {self.width} clients {self.clients} {name} {work.precision}"

    def run(self, paths: Paths) -> None:
        """Take a few steps of every client on made-up examples; no private data is used."""
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
        """Return a shard of random examples, twice as many as a batch holds."""
        size = 2 * self.width
        x, y = probe_inputs(self.model, size), probe_targets(self.model.task, self.model.classes, size)
        return Shard(x.numpy(), y.numpy())

    def private_settings(self, rngs: Sequence[np.random.Generator]) -> DPSGDSettings:
        """Return settings of private steps whose batches have the width on average."""
        count = len(rngs)
        return DPSGDSettings(
            clip_norm=1.0, noise_std=[1.0] * count, sample_rates=[0.5] * count, steps=[STEPS] * count,
            divisors=[float(self.width)] * count, sampling_rngs=rngs,
            noise_rngs=[np.random.default_rng(count + client) for client in range(count)],
        )  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One path of one field, with a test of whether it exists for a kind of work (code present, probe passed)."""

    field: str
    path: str
    exists: Callable[[FlatModel, LocalWork, int | None], bool]


def _has_stack(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    stacking = stacking_for(model)
    return stacking is not None and work.precision == "float32" and (width is None or stacking.takes(width))


def _has_loop(model: FlatModel, work: LocalWork, width: int | None) -> bool:
    return small_convolutional(model) is not None


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
    Candidate("plain", "compiled", _has_compiled_walk),
    Candidate("record", "unfold", _always),
    Candidate("record", "grouped", _has_grouped),
    Candidate("noise", "torch", _always),
    Candidate("noise", "compiled", _has_compiled_noise),
)
"""Every path that can be measured, the default first in its field."""


def available_paths(
    model: FlatModel, work: LocalWork, *, private: bool, width: int | None = None
) -> dict[str, list[str]]:
    """Return field -> the paths that this work can take here, without fields that it does not use.

    Guarantees: returns {} on devices other than the CPU and for compiled linear clients.
    """
    if model.device.type != "cpu" or work.compiled:
        return {}
    result: dict[str, list[str]] = {}
    for candidate in CANDIDATES:
        if (candidate.field != "plain") is private and candidate.exists(model, work, width):
            result.setdefault(candidate.field, []).append(candidate.path)
    return result


def missing_paths(model: FlatModel, work: LocalWork, paths: Paths) -> dict[str, str]:
    """Return field -> the requested path that does not exist here; the defaults always exist."""
    taken = {name: path for name, path in paths.describe().items() if path != getattr(BY_RULE, name)}
    known = {(candidate.field, candidate.path): candidate for candidate in CANDIDATES}

    def exists(field: str, path: str) -> bool:
        measured = known.get((field, path))
        return measured is not None and measured.exists(model, work, None)

    return {field: path for field, path in taken.items() if not exists(field, path)}


def compiled_code(paths: Paths) -> str | None:
    """Return the digest of the compiled code that these paths run, or None; another build rounds differently."""
    return library_digest() if "compiled" in paths.describe().values() else None


def choose_measured(work: MeasuredWork, *, clock: Clock = time.process_time) -> Paths:
    """Return the fastest paths for this work on this machine: from the cache, else measured now and cached.

    Guarantees: if each field has one candidate, nothing is measured, read or written. A cached result is used only
    while all its paths exist. A resumed run does not call this: it continues with the paths that it recorded.
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
    # The first process to write a kind of work decides for all, so that parallel runs do not differ in their last bits.
    kept = keep_measured(work.key, {"paths": chosen.describe(), "seconds": seconds}, stale=kept)
    return _take_kept(kept, choices) or chosen


def _take_kept(kept: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> Paths | None:
    """Return the paths of a cached entry if each can be chosen now, else None."""
    kept_paths = kept.get("paths")
    if not isinstance(kept_paths, dict) or any(kept_paths.get(field) not in many for field, many in choices.items()):
        return None
    return replace(BY_RULE, **{field: kept_paths[field] for field in choices})


def compare_paths(
    candidates: Mapping[str, Paths], run: Callable[[Paths], None], *, clock: Clock = time.process_time
) -> dict[str, float]:
    """Return the best seconds of each candidate, run in turns; clearly slower candidates leave early.

    The first turn warms up caches and counts only if it used all the available time.
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
    """Return the fastest path; the first (default) unless another is faster by more than the measurement error.

    >>> pick_fastest({"stack": 1.0, "loop": 0.97}), pick_fastest({"stack": 1.0, "loop": 0.8})
    ('stack', 'loop')
    """
    rule, fastest = next(iter(seconds)), min(seconds, key=lambda path: seconds[path])
    return rule if seconds[fastest] > WORTH * seconds[rule] else fastest


VARIABLE = "SIGHTLINE_PATHS"
SIDE_BY_SIDE, IN_TURN = 8, 2
"""Clients in a comparison: where they can be stacked, and where each is trained alone."""


def local_work(experiment: Experiment, paths: Paths = BY_RULE) -> LocalWork:
    """Return the work of one client in one round."""
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
    """Return the settings of Adam, or None if the experiment does not use it."""
    if not local.adaptive:
        return None
    plain = Adam(decoupled=local.optimizer == "adamw")
    return replace(plain, betas=local.betas or plain.betas, eps=local.adam_eps or plain.eps)


def wants_measuring(experiment: Experiment) -> bool:
    """Return whether paths and processes are chosen by measuring: `SIGHTLINE_PATHS`, else `local.paths`, else yes."""
    choice = os.environ.get(VARIABLE) or experiment.local.paths or "measured"
    if choice not in ("measured", "rule"):
        invalid(VARIABLE, choice, "must be measured or rule", "unset it to let the experiment file decide")
    return choice == "measured"


def measured_work(experiment: Experiment, model: FlatModel, sizes: Sequence[int]) -> MeasuredWork | None:
    """Return the part of the experiment's local training worth measuring; None if clients take no steps of their own.

    Guarantees: a function of the settings and of numbers of examples, which are public; no data is used.
    """
    privacy, work = experiment.privacy, local_work(experiment)
    private = privacy.unit == "sample" and privacy.mechanism == "gaussian"
    if (private and privacy.place == "server") or not len(sizes):
        return None
    # Numbers of examples are public here; the data itself is never measured.
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
    """Return the paths of a new run: the fastest on this machine, or the defaults if measuring is off.

    Submodels, and everything on devices other than the CPU, use the defaults.
    """
    if not wants_measuring(experiment) or experiment.algorithm.split is not None or model.device.type != "cpu":
        return BY_RULE
    # Training uses one thread, so paths are compared with one.
    torch.set_num_threads(1)
    work = measured_work(experiment, model, sizes)
    return BY_RULE if work is None else choose_measured(work)
