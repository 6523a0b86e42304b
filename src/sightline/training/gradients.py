"""Per-example gradients and clipped sums: one example at a time (the definition), or torch.func where it agrees."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.errors import refuse
from sightline.models.flat import (
    FlatModel,
    bind_parameters,
    flatten_module,
    probe_inputs,
    refuse_mixing_layers,
    unknown_part,
)
from sightline.models.state import ModuleState, SavedAttributes, read_switches, refuse_change, same_numbers, warm_up
from sightline.models.task import probe_targets
from sightline.training.clipping import Balls, Clip, Passes, clipped_rows, clipped_rows_apart, fill_up, square_norms

Rows = Callable[[nn.Module, FlatModel, Tensor, Tensor, Tensor], Tensor]
"""(module bound to the weights, model, weights, x, y) -> (batch, d)."""


def one_by_one(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return (batch, d) gradients by definition: a forward and a backward pass for every example alone."""
    rows = torch.zeros(len(y), model.parameters, device=x.device)
    parameters = [module.get_parameter(slot.name) for slot in model.layout]
    for index in range(len(y)):
        loss = model.task.losses(module(x[index : index + 1].clone()), y[index : index + 1], "mean")
        for slot, part in zip(model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.to_dense().reshape(-1)
    return rows


def vectorised_gradients(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the same by torch.func: vmap(grad). The module still gets one example, as a batch of one."""

    def loss(tensors: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return model.task.losses(call_with(module, tensors, one_x.unsqueeze(0)), one_y.unsqueeze(0), "mean")

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    # torch.func has no rule for the other attention kernels.
    with sdpa_kernel(SDPBackend.MATH):
        parts = per_example(model.split(weights), x.clone(), y)
    return torch.cat([parts[slot.name].reshape(len(y), slot.size) for slot in model.layout], 1)


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the module's output with these tensors as parameters, set in every layer that shares them.

    (torch's own handling of tied weights leaves a layer that is registered twice without its parameter.)
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    everywhere = {
        f"{prefix}.{key}".lstrip("."): tensors[names[id(parameter)]]
        for prefix, layer in module.named_modules()
        for key, parameter in layer._parameters.items()
        if parameter is not None and names[id(parameter)] in tensors
    }
    output: Tensor = torch.func.functional_call(module, everywhere, (x,), tie_weights=False)
    return output


def logits_apart(fresh: Callable[[], nn.Module], model: FlatModel, weights: Tensor, x: Tensor, rows: Rows) -> Tensor:
    """Return the logits of every example alone, by torch.func if `rows` uses it; `fresh` gives the module of a pass."""

    tensors, module = model.split(weights), fresh()

    def alone(example: Tensor) -> Tensor:
        return call_with(module, tensors, example.unsqueeze(0))[0]

    if rows is vectorised_gradients and len(x):
        with suppress(Exception), sdpa_kernel(SDPBackend.MATH):
            result: Tensor = torch.func.vmap(alone, randomness="different")(x.clone())
            return result
    outputs = [fresh()(x[index : index + 1].clone()) for index in range(len(x))]
    return torch.cat(outputs) if outputs else torch.empty(0, model.classes, device=x.device)


def choose_rows(module: nn.Module, model: FlatModel) -> Rows:
    """Return `vectorised_gradients` if it runs and agrees with the definition on this module, else `one_by_one`.

    Both are compared in evaluation and in training mode. Where training draws at random, only evaluation can agree.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        # For recurrent layers torch.func falls back to a slow loop of its own.
        return one_by_one
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
        # If two draws of the definition differ from each other, the module is random here and cannot be compared.
        if not rows_agree(fast, slow) and rows_agree(slow, drawn(one_by_one, seed=1)):
            return one_by_one
    return vectorised_gradients


def rows_agree(fast: Tensor, slow: Tensor) -> bool:
    """Return whether rows agree to float32 rounding."""
    return torch.allclose(fast, slow, rtol=1e-3, atol=1e-5, equal_nan=True)


DROPOUT = nn.modules.dropout._DropoutNd


class GradientWorker:
    """Worker for any torch module, differentiated by autograd.

    `weights` and `gradient` are (d,) vectors. The module's parameters are views into them, so one fused operation on
    the vector moves the whole model.

    A user's own module (one with a part that is not known to keep examples apart) gets one example at a time wherever a
    clip must bound it, and is refused as soon as anything but its result changes. Before every pass its attributes are
    restored, so nothing stored there outlives the pass.

    On a device other than the CPU the worker does not synchronise between steps, except once per pass size to compare
    its rows. Data enters through `inputs` and `place_tensor` and leaves through `hand_back`, which refuses a module
    that has changed.
    """

    channels_last = False
    """Whether images are stored in channels_last order."""
    precision = "float32"
    """`bf16` differentiates the module under torch's autocast in plain steps; outputs and losses are float32."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.device = model.device
        self.module = model.module()
        self.weights = torch.zeros(model.parameters, device=self.device)
        self.gradient = torch.zeros(model.parameters, device=self.device)
        # Of clipped gradients: no parameter's `.grad` is a view into it.
        self.total = torch.zeros_like(self.gradient)
        # Whether a pass changed its own weights; kept on the device, so that reading it does not stall every pass.
        self.moved = torch.zeros((), dtype=torch.bool, device=self.device)
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
        self.passes: dict[int, Passes] = {}
        """Number of views -> passes."""
        # A probe runs without dropout and without fallbacks.
        self.probing = False

    def move_module(self) -> None:
        """Move the module to the device, and run a user's own module once to fill its lazy state there."""
        self.module.to(self.device)
        if self.strange is not None:
            warm_up(self.module, self.model)

    @property
    def away(self) -> bool:
        """Whether it works on a device other than the CPU."""
        return self.device.type != "cpu"

    def inputs(self, x: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        """Return a shard's inputs in the memory layout of this worker, with examples on the first axis."""
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        return self.place_tensor(as_channels_last(tensor) if self.channels_last else tensor)

    def place_tensor(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the worker's device, without waiting for pending work there."""
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device) if self.away else tensor

    def hand_back(self, vector: Tensor) -> Tensor:
        """Return a result on the host.

        Guarantees: nothing leaves another device after a pass that changed anything but its result.
        """
        if not self.away:
            return vector
        if self.state is not None:
            self.refuse_if_changed("its own weights" if bool(self.moved) else None)
        return vector.cpu()

    def refuse_if_changed(self, change: str | None) -> None:
        """Raise if a pass changed the module's state, or if `change` names a change."""
        changed = None if self.state is None else self.state.find_change() or change
        if changed is not None:
            refuse_change(self.model, changed)

    def renew(self) -> nn.Module:
        """Return the module; a user's own module with the attributes it had before it saw any data."""
        if self.saved is not None:
            self.saved.restore()
        return self.module

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse a user's own module if a pass changes anything but its result and the gradient."""
        if self.strange is None:
            yield
            return
        if self.state is None or self.saved is None:
            names = [slot.name for slot in self.model.layout]
            self.state = ModuleState(self.module, names, self.model.task.own_loss)
            self.saved = SavedAttributes(self.module)
        self.saved.keep_modes()
        before, switches = self.weights.clone(), read_switches()
        self.renew()
        yield
        if read_switches() != switches:
            refuse_change(self.model, "a setting of torch or Python that holds for the whole process")
        # Recorded on the device and read once, when a result leaves. NaN compares unequal to itself, hence the second
        # term.
        if self.away:
            same = (before == self.weights) | ((before != before) & (self.weights != self.weights))
            self.moved.logical_or_(~same.all())
            return
        self.refuse_if_changed(None if same_numbers(before, self.weights) else "its own weights")

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """Return the logits of a batch on the host, without dropout; with `apart`, of every example alone."""
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
        """Return the outputs of a pass in the worker's precision, as float32."""
        if self.precision == "float32":
            return run()
        with torch.autocast(self.device.type, torch.bfloat16):
            output = run()
        return output.float()

    def own_rows(self) -> Rows:
        """Return how per-example gradients are computed, chosen once."""
        if self.rows is None:
            self.rows = choose_rows(self.module, self.model)
        return self.rows

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        r"""Write sum_j g_j min(1, C / |g_j|) to `gradient`, g_j being the gradient of example j alone.

        With several `views`, x holds that many consecutive rows per label, and g_j is their mean gradient. With
        `Balls`, the tensors of each ball are clipped to its own radius.

        Guarantees: the module gets one example at a time, so no example can reach another's g_j, which also has the
        same bits in any batch (see `Passes`). A non-finite g_j contributes zero. Memory is bounded for any batch size.
        """
        refuse_mixing_layers(self.module)
        alone = self.works_alone()
        self.set_mode(not self.probing)
        self.total.zero_()
        with self.watched(), self.without_gradients():
            if alone:
                for chunk in equal_chunks(len(y), self.most_examples(views)):
                    self.add_clipped(x[stretch_views(chunk, views)], y[chunk], len(y[chunk]), clip, views)
            else:
                self.add_passes(x, y, clip, views)
        self.gradient.copy_(self.total)

    def set_mode(self, training: bool) -> None:
        """Put the module into training or evaluation; every pass begins with this mode, whatever a pass did to it."""
        self.module.train(training)
        if self.saved is not None:
            self.saved.keep_modes()

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """Take `.grad` off the parameters; refuse a module or loss that fills it.

        A backward pass inside `forward` or inside the loss adds to `.grad`. Were that the vector of clipped sums, its
        gradient would be released unclipped (980 C for a saliency gate); left there, it would reach the next example.
        """
        parameters = list(self.module.parameters())
        bound = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
            filled = any(parameter.grad is not None for parameter in parameters)
        finally:
            for parameter, gradient in zip(parameters, bound, strict=True):
                parameter.grad = gradient
        if filled:
            refuse_change(self.model, "'.grad' of its parameters (a backward pass inside forward or the loss)")

    def most_examples(self, views: int) -> int:
        """Return how many examples are computed at once, from the model only."""
        # It must not depend on the batch: one more example would change how the others are rounded.
        return max(1, min(ROW_BYTES // (4 * self.model.parameters), MOST_ROWS) // views)

    def add_passes(self, x: Tensor, y: Tensor, clip: Clip, views: int) -> None:
        """Add the clipped sum of a batch, pass by pass."""
        if views not in self.passes:
            self.passes[views] = Passes(lambda size: self.try_pass(size, views), self.most_examples(views))
        for chunk, size in self.passes[views].split(len(y)):
            rows = fill_up(x[stretch_views(chunk, views)], size * views, channels_last=self.channels_last)
            self.add_clipped(rows, fill_up(y[chunk], size), chunk.stop - chunk.start, clip, views)

    def add_clipped(self, x: Tensor, y: Tensor, examples: int, clip: Clip, views: int) -> None:
        """Add the clipped sum of the first examples of one pass."""
        gradients = self.gradients_apart(x, y.repeat_interleave(views, 0), views)
        # Padding rows have a gradient too, and must not count.
        gradients[examples:] = 0.0
        if isinstance(clip, Balls):
            self.total += clipped_rows_apart(gradients, clip, self.model.layout)
        else:
            self.total += clipped_rows(gradients, clip)

    def pass_squares(self, x: Tensor, y: Tensor, views: int) -> list[dict[str, Tensor]]:
        """Return |g_j|^2 of every example of one pass, by layer and tensor."""
        return [{"": square_norms(self.gradients_apart(x, y.repeat_interleave(views, 0), views))}]

    def trial_inputs(self, views: int, seed: int) -> Tensor:
        """Return the views of one made-up example."""
        return self.inputs(probe_inputs(self.model, views, seed=seed).numpy())

    def trial_targets(self) -> Tensor:
        """Return the target of one made-up example."""
        return probe_targets(self.model.task, self.model.classes, 1)

    def try_pass(self, size: int, views: int) -> Tensor:
        """Return (numbers, size) squared norms of equal examples, tensor by tensor, at a few inputs and weights."""
        kept, probing, result = self.weights.clone(), self.probing, list[Tensor]()
        was = self.module.training
        with torch.random.fork_rng(devices=[]):
            start, generator = flatten_module(self.model.module()), torch.Generator().manual_seed(1)
            self.probing = True
            self.set_mode(False)
            try:
                for seed in range(TRIALS):
                    self.weights.copy_(start + 0.05 * torch.randn(start.shape, generator=generator))
                    example = self.trial_inputs(views, seed)
                    x = fill_up(
                        example.repeat(size, *[1] * (example.dim() - 1)), size * views, channels_last=self.channels_last
                    )
                    y = self.place_tensor(self.trial_targets())
                    squares = self.pass_squares(x, fill_up(y.expand(size, *y.shape[1:]), size), views)
                    result += [square.detach() for layer in squares for square in layer.values()]
            finally:
                self.probing = probing
                self.set_mode(was)
                self.weights.copy_(kept)
        return torch.stack(result)

    def works_alone(self) -> bool:
        """Return whether every example has a pass of its own."""
        return self.own_rows() is one_by_one

    def gradients_apart(self, x: Tensor, y: Tensor, views: int) -> Tensor:
        """Return (examples, d): every example's own gradient, the mean over its views."""
        rows, run = self.own_rows(), self.run_rows if self.strange is None else self.run_apart
        try:
            result = run(rows, x, y) if rows is one_by_one else self.run_rows(rows, x, y)
        except Exception as error:
            if rows is one_by_one:
                raise
            refuse_data(self.model, error)
        return result if views == 1 else result.view(-1, views, result.shape[1]).mean(1)

    def run_rows(self, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        """Run one pass over some examples with a module that has seen none."""
        return rows(self.renew(), self.model, self.weights, x, y)

    def run_apart(self, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        """Run a pass per example, each with a module and a torch generator state that no other example has touched."""
        if not len(y):
            return self.run_rows(rows, x, y)
        if self.away and not self.dropout:
            return torch.cat(
                [self.run_rows(rows, x[index : index + 1], y[index : index + 1]) for index in range(len(y))]
            )
        result, host = [], torch.default_generator
        # torch.manual_seed asks every kind of device, which takes a millisecond
        set_seed = torch.manual_seed if self.away else host.manual_seed
        with torch.random.fork_rng(devices=[]):
            # One seed per example, drawn up front: how often an example draws cannot shift the draws of the next.
            seeds = torch.randint(2**62, (len(y),)).tolist()
            after = host.get_state()
            for index, seed in enumerate(seeds):
                set_seed(seed)
                result.append(self.run_rows(rows, x[index : index + 1], y[index : index + 1]))
        if self.dropout:
            host.set_state(after)
        return torch.cat(result)


def refuse_data(model: FlatModel, error: Exception) -> NoReturn:
    """Refuse a batch on which vectorised examples fail although a probe did not.

    Computing them one by one would work but round differently: one example would decide how all others are rounded.
    """
    cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    refuse(
        "model",
        model.name,
        f"forward fails on a batch, but not on made-up inputs ({cause})",
        "do not let forward depend on values of the data",
    )


TRIALS = 2
"""Number of inputs and weights that a trial uses."""

ROW_BYTES = 1 << 26
"""Memory limit for instantiated per-example gradients."""

MOST_ROWS = 512
"""Most examples differentiated at once: activations between the layers take memory too."""


def as_channels_last(x: Tensor) -> Tensor:
    """Return the images with channels_last strides, even if one channel makes both orders look alike."""
    _, channels, height, width = x.shape
    if channels == 1:
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def equal_chunks(length: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of nearly equal length, at most `size`, that cover `length`."""
    pieces = -(-length // size)
    edges = [length * piece // pieces for piece in range(pieces + 1)] if pieces else [0]
    return (slice(start, stop) for start, stop in pairwise(edges))


def stretch_views(rows: slice, views: int) -> slice:
    """Return the rows of some examples with several views each."""
    return slice(rows.start * views, rows.stop * views)


@contextmanager
def own_dropout(worker: GradientWorker, rng: np.random.Generator) -> Iterator[None]:
    """Draw the module's dropout masks from the client's own generator, if it has dropout."""
    if not worker.dropout:
        yield
        return
    away = {"devices": [worker.device], "device_type": worker.device.type} if worker.away else {"devices": []}
    with torch.random.fork_rng(**away):
        torch.manual_seed(int(rng.integers(2**63)))
        yield
