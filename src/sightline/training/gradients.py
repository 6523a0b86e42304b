"""Per-example gradients and their clipped sums: one at a time (always right), or by torch.func where that agrees."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.models.flat import CPU, FlatModel, Slot, bind_parameters, flatten_module, probe_inputs
from sightline.models.mixing import refuse_mixing_layers, unknown_part
from sightline.models.state import ModuleState, SavedAttributes, refuse_change, same_numbers, warm_up
from sightline.models.task import probe_targets

SLACK = 1.0 - 2.0**-18
"""Rows are scaled onto SLACK * C: float32 rounding of a norm must not let a row through that is longer than C."""

PLAIN_LENGTH = 1 << 16
"""Up to this length torch's own norm is right to 1e-6."""


@dataclass(frozen=True)
class Balls:
    """Tensors that are clipped apart from each other: every tensor belongs to one ball, each ball has its radius."""

    clip_norms: tuple[float, ...]
    ball_of: Mapping[str, int]
    """Tensor name -> number of its ball."""

    def columns(self, slots: Sequence[Slot], device: torch.device = CPU) -> list[Tensor]:
        """The positions of each ball's tensors in the flat vector."""
        found: list[list[Tensor]] = [[] for _ in self.clip_norms]
        for slot in slots:
            found[self.ball_of[slot.name]].append(torch.arange(slot.start, slot.stop, device=device))
        return [torch.cat(some) if some else torch.empty(0, dtype=torch.long, device=device) for some in found]


Clip = float | Balls
"""One radius for the whole gradient, or balls."""


def factors_of(squares: Sequence[Mapping[str, Tensor]], clip: Clip) -> tuple[Tensor, Callable[[str], Tensor]]:
    """(which examples are finite, tensor name -> clip factors) from the layers' squared norms by tensor."""
    radii = clip.clip_norms if isinstance(clip, Balls) else (clip,)
    ball_of: Callable[[str], int] = clip.ball_of.__getitem__ if isinstance(clip, Balls) else lambda name: 0
    norms: dict[int, Tensor] = {}
    for ball in range(len(radii)):
        own = [[square for name, square in layer.items() if ball_of(name) == ball] for layer in squares]
        totals = [some[0] if len(some) == 1 else torch.stack(some).sum(0) for some in own if some]
        if totals:
            norms[ball] = torch.stack(totals).sum(0).sqrt_()
    finite = torch.stack([torch.isfinite(some) for some in norms.values()]).all(0)
    factors = {ball: clip_factors(some, radii[ball]) for ball, some in norms.items()}
    return finite, lambda name: factors[ball_of(name)]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / norm), and zero where the norm is not finite.

    >>> clip_factors(torch.tensor([0.5, float("nan")]), 1.0)
    tensor([1., 0.])
    """
    factors = torch.clamp(SLACK * clip_norm / norms.clamp_min(1e-30), max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))


def row_norms(rows: Tensor) -> Tensor:
    """|row| of every row, right to float32 rounding at any length.

    torch's norm adds the squares of float32 one after the other: at 42 million numbers it is .3 % too small, which
    would let more than C through. Its sum goes by halves; long rows use that.
    """
    if rows.shape[1] > PLAIN_LENGTH:
        return (rows * rows).sum(1).sqrt_()
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def clipped_rows(gradients: Tensor, clip_norm: float) -> Tensor:
    """sum_j g_j min(1, C / |g_j|) over the rows; a non-finite row contributes zero.

    >>> clipped_rows(torch.tensor([[0.5, 0.0], [float("inf"), 1.0]]), 1.0)
    tensor([0.5000, 0.0000])
    """
    factors = clip_factors(row_norms(gradients), clip_norm)
    if gradients.device.type != "cpu":
        return scaled_sum(gradients, factors)
    if not bool((factors > 0).all()):
        gradients = torch.where(factors[:, None] > 0, gradients, torch.zeros_like(gradients))
    return factors @ gradients


def scaled_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """sum_j factor_j row_j, and nothing of a row whose factor is zero, whatever is in it.

    Guarantees: nobody asks the device for a number; no product is rounded to fewer bits than float32 has, as those of
    matrices may be.
    """
    return torch.where(factors[:, None] > 0, rows, torch.zeros_like(rows)).mul_(factors[:, None]).sum(0)


def clipped_rows_apart(gradients: Tensor, clip: Balls, slots: Sequence[Slot]) -> Tensor:
    """As `clipped_rows`, every ball clipped to its own radius; a row that is not finite anywhere contributes zero."""
    finite = torch.isfinite(row_norms(gradients))
    if gradients.device.type != "cpu" or not bool(finite.all()):
        gradients = torch.where(finite[:, None], gradients, torch.zeros_like(gradients))
    total = gradients.new_zeros(gradients.shape[1])
    for columns, clip_norm in zip(clip.columns(slots, gradients.device), clip.clip_norms, strict=True):
        total[columns] = clipped_rows(gradients[:, columns], clip_norm)
    return total


Rows = Callable[[nn.Module, FlatModel, Tensor, Tensor, Tensor], Tensor]
"""(module bound to the weights, model, weights, x, y) -> (batch, d)."""


def one_by_one(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The definition: a forward and a backward pass for every example on its own."""
    rows = torch.zeros(len(y), model.parameters, device=x.device)
    parameters = [module.get_parameter(slot.name) for slot in model.layout]
    for index in range(len(y)):
        loss = model.task.losses(module(x[index : index + 1].clone()), y[index : index + 1], "mean")
        for slot, part in zip(model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.to_dense().reshape(-1)
    return rows


def vectorised_gradients(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same by torch.func: vmap(grad). The module is still given one example: a batch of size one."""

    def loss(tensors: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return model.task.losses(call_with(module, tensors, one_x.unsqueeze(0)), one_y.unsqueeze(0), "mean")

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    with sdpa_kernel(SDPBackend.MATH):  # torch.func has no rule for the other kernels of attention
        parts = per_example(model.split(weights), x.clone(), y)
    return torch.cat([parts[slot.name].reshape(len(y), slot.size) for slot in model.layout], 1)


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The module's result with these tensors as its parameters, put once into every layer that shares them.

    (torch's own way with tied weights leaves a layer that stands in two places without its parameter.)
    """
    names = {id(one): name for name, one in module.named_parameters()}
    everywhere = {
        f"{place}.{word}".lstrip("."): tensors[names[id(one)]]
        for place, layer in module.named_modules()
        for word, one in layer._parameters.items()
        if one is not None and names[id(one)] in tensors
    }
    output: Tensor = torch.func.functional_call(module, everywhere, (x,), tie_weights=False)
    return output


def logits_apart(fresh: Callable[[], nn.Module], model: FlatModel, weights: Tensor, x: Tensor, rows: Rows) -> Tensor:
    """The logits of every example alone, by torch.func where `rows` may use it; `fresh` gives the module of a pass."""

    tensors, module = model.split(weights), fresh()

    def alone(one: Tensor) -> Tensor:
        return call_with(module, tensors, one.unsqueeze(0))[0]

    if rows is vectorised_gradients and len(x):
        with suppress(Exception), sdpa_kernel(SDPBackend.MATH):
            found: Tensor = torch.func.vmap(alone, randomness="different")(x.clone())
            return found
    outputs = [fresh()(x[index : index + 1].clone()) for index in range(len(x))]
    return torch.cat(outputs) if outputs else torch.empty(0, model.classes, device=x.device)


def choose_rows(module: nn.Module, model: FlatModel) -> Rows:
    """`vectorised_gradients` when it runs and agrees with the definition on this module, else `one_by_one`.

    Both are asked in evaluation and in training; where training draws at random only the former can agree.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        return one_by_one  # torch.func falls back to a slow loop of its own there
    probe = model.module()
    weights = flatten_module(probe)
    x, y = probe_inputs(model, 3), probe_targets(model.task, model.classes, 3)

    def drawn(rows: Rows, seed: int = 0) -> Tensor:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return rows(probe, model, weights, x, y)

    for training in (False, True):
        probe.train(training)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                fast = drawn(vectorised_gradients)
        except Exception:
            return one_by_one
        slow = drawn(one_by_one)
        if not rows_agree(fast, slow) and rows_agree(slow, drawn(one_by_one, seed=1)):
            return one_by_one
    return vectorised_gradients


def rows_agree(fast: Tensor, slow: Tensor) -> bool:
    """Whether rows agree to float32 rounding."""
    return torch.allclose(fast, slow, rtol=1e-3, atol=1e-5, equal_nan=True)


DROPOUT = nn.modules.dropout._DropoutNd


class GradientWorker:
    """Any torch module, differentiated by autograd.

    `weights` and `gradient` are (d,) vectors; the module's parameters are views into them, so that one fused operation
    on the vector moves the whole model.

    A module of the user's own, one with a part of which it is not known that it treats examples apart, is given one
    example at a time wherever a clip must bound it, and is refused as soon as anything but its result has changed.
    Before every pass its attributes are put back to what they were, so that nothing kept there outlives the pass.

    On another device than the CPU nothing is asked back between the steps: what comes is moved by `inputs` and
    `place_tensor`, what leaves goes through `hand_back`, which refuses the module then if it has changed.
    """

    precision = "float32"
    """`bf16`: plain steps differentiate the module under torch's autocast; outputs and losses are float32."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.device = model.device
        self.module = model.module()
        self.weights = torch.zeros(model.parameters, device=self.device)
        self.gradient = torch.zeros(model.parameters, device=self.device)
        self.moved = torch.zeros((), dtype=torch.bool, device=self.device)  # whether a pass changed its own weights
        self.strange = unknown_part(self.module) or model.task.loss_name
        self.state: ModuleState | None = None
        self.dropout = any(isinstance(layer, DROPOUT) and layer.p > 0 for layer in self.module.modules())
        if self.strange is not None:
            self.dropout |= warm_up(self.module, model)
        if self.away:
            self.move_module()
        bind_parameters(self.module, model.layout, self.weights, self.gradient)
        self.saved: SavedAttributes | None = None
        self.rows: Rows | None = None
        self.probing = False  # a probe wants no dropout and no way round a failure

    def move_module(self) -> None:
        """Move the module, and let one of the user's own fill there what it fills once."""
        self.module.to(self.device)
        if self.strange is not None:
            warm_up(self.module, self.model)

    @property
    def away(self) -> bool:
        """Whether it works on another device than the CPU."""
        return self.device.type != "cpu"

    def inputs(self, x: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        """A shard's inputs in the memory layout this worker likes; examples on the first axis."""
        return self.place_tensor(torch.from_numpy(np.ascontiguousarray(x)))

    def place_tensor(self, tensor: Tensor) -> Tensor:
        """A tensor of the host where the worker works; nobody waits for what is at work there."""
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device) if self.away else tensor

    def hand_back(self, found: Tensor) -> Tensor:
        """What leaves the worker, on the host; itself where the worker works there.

        Guarantees: from another device nothing leaves after a pass that changed anything but its result.
        """
        if not self.away:
            return found
        if self.state is not None:
            self.refuse_if_changed("its own weights" if bool(self.moved) else None)
        return found.cpu()

    def refuse_if_changed(self, place: str | None) -> None:
        """Raise when a pass has changed the module's state, or what `place` names."""
        changed = None if self.state is None else self.state.find_change() or place
        if changed is not None:
            refuse_change(self.model, changed)

    def renew(self) -> nn.Module:
        """The module; one of the user's own with the attributes that it had before it saw any data."""
        if self.saved is not None:
            self.saved.restore()
        return self.module

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse a module of the user's own when a pass changed anything but its result and the gradient."""
        if self.strange is None:
            yield
            return
        if self.state is None or self.saved is None:
            names = [slot.name for slot in self.model.layout]
            self.state = ModuleState(self.module, names, self.model.task.own_loss)
            self.saved = SavedAttributes(self.module)
        before = self.weights.clone()
        self.renew()
        yield
        if self.away:  # asked once, when something leaves
            same = (before == self.weights) | ((before != before) & (self.weights != self.weights))
            self.moved.logical_or_(~same.all())
            return
        self.refuse_if_changed(None if same_numbers(before, self.weights) else "its own weights")

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """The logits of a batch on the host, without dropout and without a tape; `apart`: of every example alone."""
        self.module.eval()
        with torch.no_grad(), self.watched():
            if apart and self.strange is not None:
                output = logits_apart(self.renew, self.model, self.weights, x, self.own_rows())
            else:
                output = self.module(x.clone())
        return self.hand_back(output)

    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        """Write the gradient of the batch's mean loss to `gradient`."""
        self.module.train(not self.probing)
        self.gradient.zero_()
        with self.watched():
            output = self.run_cast(lambda: self.module(x.clone()))
            self.model.task.losses(output, y, "mean").backward()  # type: ignore[no-untyped-call]

    def run_cast(self, run: Callable[[], Tensor]) -> Tensor:
        """The outputs of a pass in the worker's precision, as float32."""
        if self.precision == "float32":
            return run()
        with torch.autocast(self.device.type, torch.bfloat16):
            output = run()
        return output.float()

    def own_rows(self) -> Rows:
        """How gradients of single examples are computed, chosen once."""
        if self.rows is None:
            self.rows = choose_rows(self.module, self.model)
        return self.rows

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        r"""Write sum_j g_j min(1, C / |g_j|) to `gradient`, g_j being the gradient of example j alone.

        With several `views` x holds that many rows for each label, one after the other, and g_j is their mean gradient.
        With `Balls` the tensors of every ball are clipped by themselves to its radius.

        Guarantees: the module is given one example at a time, so that whatever it does no example reaches another's
        g_j; a non-finite g_j contributes zero; memory is bounded whatever the batch.
        """
        refuse_mixing_layers(self.module)
        self.own_rows()
        self.module.train(not self.probing)
        self.gradient.zero_()
        with self.watched():
            for some in equal_chunks(len(y), max(1, min(ROW_BYTES // (4 * self.model.parameters), MOST_ROWS) // views)):
                labels = y[some].repeat_interleave(views, 0)
                gradients = self.gradients_apart(x[stretch_views(some, views)], labels, views)
                if isinstance(clip, Balls):
                    self.gradient += clipped_rows_apart(gradients, clip, self.model.layout)
                else:
                    self.gradient += clipped_rows(gradients, clip)

    def gradients_apart(self, x: Tensor, y: Tensor, views: int) -> Tensor:
        """(examples, d): every example's own gradient, the mean over its views."""
        rows, apart = self.own_rows(), self.run_rows if self.strange is None else self.run_apart
        try:
            found = apart(rows, x, y) if rows is one_by_one else self.run_rows(rows, x, y)
        except Exception:
            if rows is one_by_one:
                raise
            self.rows = one_by_one  # on these data the module does what torch.func cannot follow
            found = apart(one_by_one, x, y)
        return found if views == 1 else found.view(-1, views, found.shape[1]).mean(1)

    def run_rows(self, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        """One pass over some examples, by a module that has seen none."""
        return rows(self.renew(), self.model, self.weights, x, y)

    def run_apart(self, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        """A pass for every example, each by a module, and from a state of torch's generator, that saw no other."""
        if not len(y):
            return self.run_rows(rows, x, y)
        if self.away and not self.dropout:
            return torch.cat([self.run_rows(rows, x[one : one + 1], y[one : one + 1]) for one in range(len(y))])
        found, host = [], torch.default_generator
        # torch.manual_seed asks every kind of device, which takes a millisecond
        set_seed = torch.manual_seed if self.away else host.manual_seed
        with torch.random.fork_rng(devices=[]):
            seeds = torch.randint(2**62, (len(y),)).tolist()
            after = host.get_state()
            for one, seed in enumerate(seeds):
                set_seed(seed)
                found.append(self.run_rows(rows, x[one : one + 1], y[one : one + 1]))
        if self.dropout:
            host.set_state(after)
        return torch.cat(found)


ROW_BYTES = 1 << 26
"""How much memory instantiated per-example gradients may take."""

MOST_ROWS = 512
"""How many examples are differentiated at once: what lies between a module's layers takes memory too."""


def equal_chunks(length: int, size: int) -> Iterator[slice]:
    """Consecutive slices of nearly equal length, at most `size`, that cover `length`."""
    pieces = -(-length // size)
    edges = [length * piece // pieces for piece in range(pieces + 1)] if pieces else [0]
    return (slice(start, stop) for start, stop in pairwise(edges))


def stretch_views(some: slice, views: int) -> slice:
    """The rows of some examples that have several views each."""
    return slice(some.start * views, some.stop * views)


@contextmanager
def own_dropout(worker: GradientWorker, rng: np.random.Generator) -> Iterator[None]:
    """Draw the module's dropout masks from the client's own generator, when it has any."""
    if not worker.dropout:
        yield
        return
    away = {"devices": [worker.device], "device_type": worker.device.type} if worker.away else {"devices": []}
    with torch.random.fork_rng(**away):
        torch.manual_seed(int(rng.integers(2**63)))
        yield
