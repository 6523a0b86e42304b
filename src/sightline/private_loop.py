"""Private steps in a user's own training loop: `make_private` adds clipping, noise and a ledger."""

import hashlib
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from sightline import accounting
from sightline.data.tables import LABELS
from sightline.errors import InvalidInput, invalid, refuse
from sightline.events import Event, Gaussian, Poisson, Unit
from sightline.ledger import Ledger, StepKind, StepLedger
from sightline.models.flat import flatten_module, trained_parameters
from sightline.models.state import read_state
from sightline.randomness import OS_ROOT, Purpose, Streams
from sightline.training.dp_sgd_settings import check_clip_norm, draw_gaussian
from sightline.training.own_module import (
    Loss,
    OwnModule,
    Parts,
    check_batch,
    check_module,
    clipped_gradient,
    own_module,
    pack_inputs,
    reduction_of,
)

__all__ = ["PoissonLoader", "PrivateTraining", "clipped_gradient", "make_private"]

STEPS = StepKind("samples", Unit.SAMPLE, "trainer", "noisy mean of clipped gradients")


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float,
    epochs: int | None = None,
    clip_norm: float = 1.0,
    ledger: Path | str | None = None,
    seed: int | None = None,
) -> "PrivateTraining":
    r"""Make a loop private: `model, optimizer, loader = make_private(model, optimizer, loader, ...)`.

    The returned loader draws every example independently with rate q = batch_size / N. Each `optimizer.step()` takes
    the loader's last batch, computes g = (sum_j g_j min(1, C / |g_j|) + N(0, (z C)^2)) / (q N) itself and steps with
    that: gradients of `loss.backward()` are neither needed nor used. `loss` is what the step differentiates, by default
    cross entropy; one with reduction="sum" is not divided by q N. A batch is a pair (x, y), or a dictionary with
    `labels`, `label` or `y`, whose other tensors are the model's keyword arguments; of an output with `logits` the loss
    gets these. If the loader's `collate_fn` makes several rows of an
    example, g_j is the gradient of the loss of all of them.

    Give `epsilon` with `epochs` for the least noise that lasts that many passes, or `noise_multiplier`; with `epsilon`
    the step that would exceed it raises `BudgetExhausted`. `ledger` is a file: every step is in it before it is taken,
    and a loop that is restarted with the same file continues the count, with noise of the same size. Noise and batches
    come from the operating system. `seed` is for simulations and raises a `UserWarning`: noise from a seed does not
    protect against anyone who knows or guesses it.

    Guarantees: with the given optimiser there is no step on an unclipped gradient, on a batch of another origin, or
    twice on one batch, and a drawn batch is stepped on before the next is drawn; noise is drawn again for every step,
    and is never added to two different sums, also by loops with the same seed; parameters are the model's own, so that
    `state_dict` keeps its names.
    """
    data = check_loader(loader)
    check_module(model, loss)
    check_clip_norm(clip_norm)
    accounting.refuse_large_delta("delta", delta, len(data), "examples", otherwise="")
    rate = min(1.0, (loader.batch_size or 1) / len(data))
    steps = StepLedger(ledger, STEPS, delta=delta, budget=epsilon)
    try:
        planned = 0 if epochs is None else check_count("epochs", epochs) * len(loader)
        steps.begin(choose_event(rate, steps, epsilon, noise_multiplier, planned), planned=planned)
        return PrivateTraining(model, optimizer, loader, loss=loss, clip_norm=clip_norm, steps=steps, seed=seed)
    except BaseException:
        steps.close()
        raise


def choose_event(
    rate: float,
    steps: StepLedger,
    epsilon: float | None,
    noise_multiplier: float | None,
    planned: int,
    *,
    length: str = "epochs",
) -> Event:
    """Return the event of one step: with the given noise, the ledger's, or the least that lasts."""

    def sampled(noise: float) -> Event:
        return Poisson(rate, Gaussian(noise)) if rate < 1 else Gaussian(noise)

    if noise_multiplier is not None:
        return sampled(noise_multiplier)
    if epsilon is None:
        invalid(
            "epsilon", None, "the noise is computed from a budget", f"give epsilon and {length}, or noise_multiplier"
        )
    # A continued ledger keeps its noise: a budget checked along the way holds for steps of one kind only.
    if steps.event is not None:
        return sampled(noise_of(steps.event))
    if not planned:
        invalid(length, None, "the noise for a budget depends on the length of the training", f"give {length}")
    return sampled(accounting.calibrate(lambda z: {sampled(z): planned}, epsilon=epsilon, delta=steps.delta))


def noise_of(event: Event | None) -> float:
    """Return the noise multiplier of a step."""
    return cast(Gaussian, event.event if isinstance(event, Poisson) else event).noise_multiplier


def check_count(name: str, value: Any) -> int:
    """Return the number. Raises unless it is a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        invalid(name, value, "must be a whole number >= 1")
    return value


def check_loader(loader: DataLoader[Any]) -> Sequence[Any]:
    """Return the loader's data set. Raises if Poisson batches cannot replace what it draws."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        invalid("loader", type(loader).__name__, "must be a torch.utils.data.DataLoader, without a custom __iter__")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        refuse("loader", type(loader.dataset).__name__, "examples of a stream cannot be drawn independently",
               "use a data set with a length")  # fmt: skip
    data = cast("Sequence[Any]", loader.dataset)
    if loader.batch_size is None or not len(data) or not len(loader):
        invalid("loader", f"batch_size={loader.batch_size}", "the loader must have a batch size and at least one batch")
    sampler = loader.sampler
    # Any other sampler draws examples with its own probabilities, and the rate q would not hold for all alike.
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(data)
    )
    if not plain:
        refuse("loader.sampler", type(sampler).__name__, "Poisson sampling draws all examples with one rate",
               "remove the sampler; use torch.utils.data.Subset to select examples")  # fmt: skip
    return data


class SteppedLedger:
    """The part that private loops and private strategies share: the ledger of their steps and what it costs."""

    steps: StepLedger

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of every step so far: `ledger.epsilon("samples", "public", delta)`, or "clients"."""
        return self.steps.ledger

    @property
    def noise_multiplier(self) -> float:
        """Return z: the noise on the sum has standard deviation z C."""
        return noise_of(self.steps.event)

    def epsilon(self, *, delta: float | None = None) -> float:
        """Return an upper bound on what the steps so far cost each unit at `delta` (default: the budget's)."""
        return self.steps.epsilon(delta=delta)

    def close(self) -> None:
        """Close the ledger; no step can follow."""
        self.steps.close()


class PrivateTraining(SteppedLedger):
    """A model, its private optimiser and its Poisson loader, with the ledger of their steps. Unpacks into the three."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        *,
        loss: Loss | None,
        clip_norm: float,
        steps: StepLedger,
        seed: int | None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            invalid("optimizer", type(optimizer).__name__, "must be a torch.optim.Optimizer")
        if optimizer in PRIVATE:
            refuse("optimizer", type(optimizer).__name__, "it is already private", "create a new one for another loop")
        self.model, self.optimizer, self.loss, self.clip_norm = model, optimizer, loss, clip_norm
        self.steps = steps
        self.streams = streams_of(seed, calls=3)
        if seed is not None:
            # Two loops with the same seed must not share noise on different sums, so a seeded stream is keyed by the
            # whole loop.
            self.streams = self.streams.keyed_by(*self._names(loader))
        self.loader = PoissonLoader(loader, self)
        self._waiting: tuple[Tensor, Tensor, Parts | None, list[int]] | None = None
        self._given: tuple[tuple[Tensor, int], ...] = ()
        self._trained()
        optimizer.register_step_pre_hook(self._prepare_step)
        PRIVATE.add(optimizer)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.loader))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hand_out(self, batch: Any, counts: list[int], time: int) -> Any:
        """Keep a private copy of the batch drawn for this step, and return the batch.

        `counts` are the rows of its examples, one example after the other. Raises if the step is not the next one.
        """
        if time != self.steps.steps + 1:
            refuse("loader", f"step {time}", f"the next is step {self.steps.steps + 1}, and every step has its own "
                   "batch", "iterate over the loader once at a time")  # fmt: skip
        if isinstance(batch, Mapping):
            name = find_label(batch)
            x, y = {key: part for key, part in batch.items() if key != name}, batch[name]
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            x, y = batch
        else:
            invalid(
                "loader", type(batch).__name__, "a batch must be a pair (x, y) of tensors, or a dictionary with labels"
            )
        packed, parts = pack_inputs(x)
        check_batch(packed, y)
        # The step uses the copy, and versions of the returned tensors reveal changes in place: what is charged is what
        # was drawn.
        self._waiting = (packed.clone(), y.clone(), parts, counts)
        self._given = tuple((part, part._version) for part in (batch.values() if parts else batch))
        return batch

    def check_used(self) -> None:
        """Raise if a drawn batch has not been stepped on."""
        # Which batches are skipped would tell something about what is in them.
        if self._waiting is not None:
            refuse("loader", f"step {self.steps.steps + 1}", "no step was taken on the batch drawn for it",
                   "call optimizer.step() once for every batch; look at loader.dataset, not at batches")  # fmt: skip

    def _names(self, loader: DataLoader[Any]) -> Iterator[bytes]:
        """Yield everything that identifies the loop: model and weights, optimiser, loss, data and settings."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        loss = getattr(self.loss, "__qualname__", type(self.loss).__qualname__)
        settings = (self.clip_norm, self.steps.event, self.steps.delta, self.steps.budget, self.steps.steps)
        yield repr((str(self.model), type(self.optimizer).__qualname__, groups, loss, settings)).encode()
        data = loader.dataset
        yield repr((type(data).__qualname__, len(cast("Sequence[Any]", data)), loader.batch_size)).encode()
        known = data.tensors if type(data) is TensorDataset else ()
        for name, tensor in chain(self.model.state_dict().items(), (("", tensor) for tensor in known)):
            if isinstance(tensor, Tensor):
                yield repr((name, tuple(tensor.shape), str(tensor.dtype))).encode()
                yield digest_of(tensor)

    def _trained(self) -> dict[str, Tensor]:
        """Return the trained parameters by name. Raises unless the optimiser has all of them and no others."""
        trained = dict(trained_parameters(self.model))
        names = {id(parameter): name for name, parameter in trained.items()}
        held = [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        if any(id(parameter) not in names for parameter in held):
            refuse("optimizer", type(self.optimizer).__name__, "it has a parameter that is not in the model, and "
                   "its gradient would not be clipped", "give it the model's parameters only")  # fmt: skip
        missing = sorted(set(names) - {id(parameter) for parameter in held}, key=lambda key: names[key])
        if missing:
            invalid("optimizer", names[missing[0]], "this trained parameter of the model is not in the optimiser",
                    "add it, or freeze it: requires_grad_(False)")  # fmt: skip
        return cast("dict[str, Tensor]", trained)

    def _prepare_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Set the private gradient, and nothing else, before every step of the optimiser."""
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            refuse("optimizer.step", "closure", "a closure would compute gradients that are not private",
                   "call optimizer.step() without arguments; use an optimiser that needs no closure")  # fmt: skip
        x, y, parts, counts = self._take_batch()
        trained = self._trained()
        own = own_module(self.model, self.loss, x, y, parts)
        # The step is durable in the ledger before its gradient exists; if charging raises, no gradient is computed.
        time = self.steps.charge()
        self._waiting, self._given = None, ()
        gradient = self._noisy_gradient(own, x, y, counts, time)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for name, part in own.split(gradient).items():
            trained[name].grad = part.clone()

    def _take_batch(self) -> tuple[Tensor, Tensor, Parts | None, list[int]]:
        if self._waiting is None:
            refuse("optimizer.step", self.steps.steps + 1, "step() was called without a new batch from the "
                   "private loader", "iterate over the loader that make_private returned")  # fmt: skip
        if any(part._version != version for part, version in self._given):
            refuse("loader", "batch", "it was changed in place, and the step uses a copy without the change",
                   "prepare examples in the data set, or in the model")  # fmt: skip
        return self._waiting

    def _noisy_gradient(self, own: OwnModule, x: Tensor, y: Tensor, counts: list[int], time: int) -> Tensor:
        r"""Return (sum_j g_j min(1, C / |g_j|) + N(0, (z C)^2 I)) / (q N); undivided for a summed loss."""
        masks = self.streams.rng(Purpose.BATCHES, round=time, use=1)
        total = own.clipped_sum(flatten_module(self.model), x, y, self.clip_norm, rng=masks, counts=counts)
        # Keyed by the sum itself: a repeated step gets the same noise on the same sum, and fresh noise on any other.
        own_noise = self.streams.keyed_by(repr((self.noise_multiplier, self.clip_norm)).encode(), digest_of(total))
        noise = draw_gaussian(len(total), rng=own_noise.rng(Purpose.NOISE, round=time))
        total.add_(noise, alpha=self.noise_multiplier * self.clip_norm)
        return total if reduction_of(self.loss) == "sum" else total.div_(self.loader.expected_batch)


def streams_of(seed: int | None, *, calls: int) -> Streams:
    """Return the streams of a loop: from the operating system, or from a seed with a warning `calls` frames up."""
    if seed is None:
        return Streams(OS_ROOT + secrets.token_bytes(32))
    warnings.warn(
        f"seed={seed}: noise from a seed is for simulations and does not protect real data; omit seed there",
        UserWarning,
        stacklevel=calls + 1,
    )
    return Streams.from_seed(seed)


def find_label(batch: Mapping[str, Any]) -> str:
    """Return the key of a dictionary's labels. Raises unless exactly one of the usual names is there."""
    result = [name for name in LABELS if name in batch]
    if len(result) != 1:
        reason = f"exactly one key must be the labels, and {len(result)} keys could be ({', '.join(LABELS)})"
        invalid("loader", [*batch][:8], f"the batch is a dictionary: {reason}", "rename one in the data set")
    return result[0]


def digest_of(tensor: Tensor) -> bytes:
    """Return a digest of a tensor's numbers."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().data).digest()


# Optimisers that were given to make_private.
PRIVATE: WeakSet[torch.optim.Optimizer] = WeakSet()


class PoissonLoader:
    """Batches that hold every example of a data set independently with probability `rate`; some are empty.

    A pass has as many batches as the original loader. Examples are collated one by one, so that no batch lets one
    example reach another. A `collate_fn` that keeps anything it has seen is refused. The data set is trusted to return
    every example by itself: it may cache, and is not inspected.
    """

    def __init__(self, loader: DataLoader[Any], private: PrivateTraining) -> None:
        self.dataset, self._private, self._passes = loader.dataset, private, len(loader)
        self._examples = len(cast("Sequence[Any]", loader.dataset))
        self.rate = min(1.0, cast(int, loader.batch_size) / self._examples)
        workers = ("num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
        self._workers = {name: getattr(loader, name) for name in workers}
        # Examples are collated one by one and concatenated afterwards, so that no batch operation lets one example
        # affect another.
        self._batches = _Batches(loader.dataset, loader.collate_fn)

    def __len__(self) -> int:
        return self._passes

    @property
    def expected_batch(self) -> float:
        """Return q N, by which sums are divided: the size of the drawn batch is not public."""
        return self.rate * self._examples

    def draw(self, time: int) -> NDArray[np.int64]:
        """Return the examples of one step."""
        # A function of the step's number: what was drawn ahead and not used is drawn again.
        rng = self._private.streams.rng(Purpose.BATCHES, round=time)
        return np.flatnonzero(rng.random(self._examples) < self.rate)

    def __iter__(self) -> Iterator[Any]:
        if len(cast("Sequence[Any]", self.dataset)) != self._examples:
            refuse("loader.dataset", len(cast("Sequence[Any]", self.dataset)), f"there were {self._examples} examples "
                   "when the noise was computed", "call make_private again with the present data")  # fmt: skip
        self._private.check_used()
        first = self._private.steps.steps + 1
        drawn = _Draws(self, first)
        batches = DataLoader(self._batches, sampler=drawn, batch_size=None, collate_fn=_leave, **self._workers)
        for time, (batch, counts) in enumerate(batches, first):
            self._private.check_used()
            yield self._private.hand_out(batch, counts, time)


class _Draws:
    """The examples of the steps of one pass."""

    def __init__(self, loader: PoissonLoader, first: int) -> None:
        self.loader, self.first = loader, first

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self.loader.draw(self.first + step) for step in range(len(self)))


class _Batches(Dataset[Any]):
    """A data set whose items are (batch, rows of each example), indexed by the numbers of their examples.

    Every example is collated alone and all its rows are kept, so it is known which rows belong to which example.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.collate = dataset, collate
        self.before = None if collate is default_collate else read_state("collate_fn", collate)

    def _refuse_memory(self) -> None:
        """Raise where collating has changed anything but a random generator: it would reach the next example."""
        index = None if self.before is None else self.before.find_change(draws=False)
        if index is not None:
            self._refuse(f"it changes {index}, so that one example would reach the next; keep nothing")

    def __getitem__(self, numbers: NDArray[np.int64]) -> tuple[Any, list[int]]:
        if type(self.dataset) is TensorDataset and self.collate is default_collate:
            rows = torch.from_numpy(numbers)
            return tuple(part[rows] for part in self.dataset.tensors), [1] * len(numbers)
        alone = [self.collate([self.dataset[int(number)]]) for number in numbers]
        self._refuse_memory()
        batches = alone or [self.collate([self.dataset[0]])]
        names = [*batches[0]] if isinstance(batches[0], Mapping) else None
        if names is not None:
            if any(not isinstance(batch, Mapping) or [*batch] != names for batch in batches):
                self._refuse("examples, each collated alone, have different keys; give all the same")
            batches = [tuple(batch.values()) for batch in batches]
        try:
            parts = list(zip(*batches, strict=True))
        except (TypeError, ValueError) as error:
            self._refuse(f"examples, each collated alone, do not fit together ({error}); give pairs or dictionaries")
        joined = [self._join(part, f"[{names[n]!r}]" if names else f"[{n}]") for n, part in enumerate(parts)]
        held = tuple(part[: None if alone else 0] for part in joined)
        batch: Any = held if names is None else dict(zip(names, held, strict=True))
        if any(rows.dtype != part[0].dtype for part in parts for rows in part):
            self._refuse("examples, each collated alone, have different number types; give all the same")
        counts = [[len(rows) for rows in part] for part in parts] if alone else [[]]
        if any(other != counts[0] for other in counts):
            self._refuse(
                "an example, collated alone, has a different number of rows in x than in y; give each row its target"
            )
        return batch, counts[0]

    def _join(self, rows: Sequence[Any], where: str) -> Tensor:
        """Return the rows of one part of all examples. Raises if they are not tensors or differ in shape."""
        for row in rows:
            if not isinstance(row, Tensor) or not row.dim():
                way_out = 'remove it, or make it a tensor: dataset.set_format("torch")'
                self._refuse(f"batch{where} is a {type(row).__name__}, not a tensor of rows; {way_out}")
        shapes = sorted({tuple(row.shape[1:]) for row in rows})
        if len(shapes) > 1:
            how = 'in the data set, e.g. tokenizer(..., padding="max_length")'
            problem = f"batch{where} of examples, each collated alone, has shapes {shapes[0]} to {shapes[-1]}"
            self._refuse(f"{problem}; padding to the longest would let examples meet: pad to one length {how}")
        return torch.cat(tuple(rows))

    def _refuse(self, reason: str) -> NoReturn:
        name = getattr(self.collate, "__name__", self.collate)
        raise InvalidInput(f"loader.collate_fn={name}: {reason}"[:300]) from None


def _leave(batch: Any) -> Any:
    return batch
