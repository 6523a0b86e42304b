"""Clipped gradients of a user's own torch module and loss, for training loops outside Sightline."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from sightline.data.federation import Kind
from sightline.errors import invalid, refuse
from sightline.models.flat import (
    FlatModel,
    constants_of,
    flatten_module,
    layout_of,
    probe_inputs,
    refuse_mixing_layers,
    trained_parameters,
    unknown_part,
)
from sightline.models.reach import UNSEEN
from sightline.models.registry import NamedInputs, wrap_transformer
from sightline.models.state import ModuleState, refuse_copy, refuse_memory
from sightline.training.clipping import Clip, Passes
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import check_clip_norm
from sightline.training.gradients import (
    GradientWorker,
    Rows,
    call_with,
    own_dropout,
    refuse_data,
    rows_agree,
)

Loss = Callable[[Any, Tensor], Tensor]
"""(outputs, targets) of the rows of one example, usually one row -> its loss."""


def clipped_gradient(
    model: nn.Module,
    loss: Loss | None,
    x: Tensor | Mapping[str, Tensor],
    y: Tensor,
    clip_norm: float,
    *,
    rng: np.random.Generator | None = None,
) -> dict[str, Tensor]:
    r"""Return sum_j g_j min(1, C / |g_j|) by parameter name, g_j being the gradient of loss(model(x_j), y_j).

    `x` may be a dictionary of tensors, which are the model's keyword arguments. `loss` is any function of (outputs,
    targets), or of (logits, targets) for a model of Hugging Face; None is cross entropy. It gets one example at a time,
    as a batch of one, and so does a model that is not known to keep examples apart. Plain cross entropy on known layers
    takes the fast paths. Frozen parameters have no entry. The sum has no noise: it is not private.

    Guarantees: adding or removing one example moves the sum by at most C, over all parameters together. A non-finite
    g_j contributes zero. An empty batch gives zeros. The model, its gradients and its mode are left unchanged. Batch
    normalisation, and a model or loss that keeps state from what it has seen, are refused. With `rng` dropout masks
    come from it.

    >>> model = nn.Linear(2, 2)
    >>> summed = clipped_gradient(model, nn.CrossEntropyLoss(), torch.ones(3, 2), torch.tensor([0, 1, 1]), 0.1)
    >>> sorted(summed), bool(torch.cat([part.flatten() for part in summed.values()]).norm() <= 0.3)
    (['bias', 'weight'], True)
    """
    check_clip_norm(clip_norm)
    packed, parts = pack_inputs(x)
    check_batch(packed, y)
    own = own_module(model, loss, packed, y, parts)
    return own.split(own.clipped_sum(flatten_module(model), packed, y, clip_norm, rng=rng))


Parts = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the parts of an example that is passed by keywords."""


def pack_inputs(x: Any) -> tuple[Any, Parts | None]:
    """Return a dictionary of tensors as one tensor, and its parts; anything else as it is, and None."""
    if not isinstance(x, Mapping):
        return x, None
    for name, part in x.items():
        if not isinstance(part, Tensor) or not part.dim():
            reason = f"is a {type(part).__name__}, but a part of a batch must be a tensor with one row per example"
            invalid(f"x[{name!r}]", "not a tensor", reason, "remove it from the data set, or make it a tensor")
    if not x:
        invalid("x", "{}", "the batch has labels, but no inputs")
    first = next(iter(x.values()))
    # One tensor of one type: everything that is known of examples holds for the whole of an example's inputs.
    kinds = {name: part.is_floating_point() for name, part in x.items()}
    if len({*kinds.values()}) > 1 or any(len(part) != len(first) for part in x.values()):
        names = ", ".join(f"{name} {part.dtype} {tuple(part.shape)}" for name, part in x.items())
        reason = (
            f"parts of a batch must have one row per example, with all of them whole numbers or all float32 ({names})"
        )
        invalid("x", [*x], reason, "convert them in the data set")
    whole = torch.cat([part.reshape(len(part), -1) for part in x.values()], 1)
    return whole, tuple((name, tuple(part.shape[1:])) for name, part in x.items())


def check_batch(x: Any, y: Any) -> None:
    """Raise unless (x, y) is a batch: two CPU tensors with one row per example."""
    for name, rows in (("x", x), ("y", y)):
        if not isinstance(rows, Tensor):
            invalid(name, type(rows).__name__, "a batch must be a pair (x, y) of tensors")
        if rows.device.type != "cpu":
            invalid(name, rows.device, "private steps are computed on the CPU", "keep model and batches on the CPU")
        if not rows.dim() or len(rows) != len(x):
            invalid(name, tuple(rows.shape), "x and y must have one row per example")
    if x.is_floating_point() and x.dtype != torch.float32:
        invalid("x", x.dtype, "inputs must be float32 or whole numbers", "call .float() in the data set")


def reduction_of(loss: Loss | None) -> str:
    """Return whether an optimiser with this loss expects the mean over the batch or the sum."""
    return "sum" if getattr(loss, "reduction", "mean") == "sum" else "mean"


@dataclass(frozen=True, eq=False)
class OneLoss:
    """A loss applied to one example: a batch of one in, one number out.

    Class weights stay weights. torch's weighted mean would divide them by their sum, which over one example is the
    weight itself.
    """

    given: Loss | None

    @property
    def name(self) -> str:
        """The name of the loss."""
        return str(getattr(self.given, "__name__", type(self.given).__name__))

    @property
    def plain(self) -> bool:
        """Whether it is cross entropy as the fast paths compute it."""
        loss = self.given
        if loss is None or loss is functional.cross_entropy:
            return True
        # Exact types, no hooks, no replaced forward: only known code may take the fast paths.
        if type(loss) is not nn.CrossEntropyLoss or "forward" in vars(loss) or loss._forward_hooks:
            return False
        usual = loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
        return usual and not loss._forward_pre_hooks and loss.reduction != "none"

    @cached_property
    def function(self) -> Loss:
        """The loss itself, or a copy that keeps class weights."""
        loss = self.given
        if loss is None:
            return functional.cross_entropy
        weighted = getattr(loss, "weight", None) is not None and isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        if not weighted and getattr(loss, "reduction", None) != "none":
            return loss
        summed = copy.copy(loss)
        summed.reduction = "none"  # type: ignore[attr-defined]
        whole = torch.sum if reduction_of(loss) == "sum" else torch.mean
        return lambda outputs, targets: whole(summed(outputs, targets))

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of one example; raise unless it is one number."""
        value = self.function(outputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            invalid("loss", shape, "the loss must be one number for a batch of one example")
        return value.reshape(())


class LossWorker(GradientWorker):
    """Worker for any module with any loss: one example at a time, vectorised where torch.func agrees.

    x is (examples, rows, ...) and y is (examples, rows, ...). The gradient of an example is that of loss(module(its
    rows), its targets), mean or sum over its rows as the loss reduces them.

    Guarantees: those of `GradientWorker.clipped_sum`; a loss that keeps state from what it has seen is refused.
    """

    def __init__(self, model: FlatModel, loss: OneLoss, targets: Tensor) -> None:
        super().__init__(model)
        self.loss, self.targets = loss, targets.new_zeros(3, 1, *targets.shape[1:])
        self.count = 1
        """Rows per example in the current batch."""
        self.chosen: dict[int, tuple[Rows, dict[int, Passes]]] = {}
        """Number of rows -> how gradients are computed, and their passes."""
        self.holder = nn.Module()
        self.holder.__dict__["loss"] = loss.given

    def renew(self) -> nn.Module:
        """Return the module, with module and loss restored to copies that have seen no data."""
        self.held = self.copy_loss()
        self.loss = OneLoss(vars(self.held)["loss"])
        return super().renew()

    def copy_loss(self) -> nn.Module:
        """Return the holder of a copy of the loss that has seen no data."""
        try:
            return copy.deepcopy(self.holder)
        except Exception as error:
            refuse_copy("loss", self.loss.name, error)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise if a pass changed the loss or the module."""
        # Passing one example at a time does not help against a loss that remembers: state kept from one example would
        # reach the gradient of the next.
        before = ModuleState(self.copy_loss(), ())
        self.renew()
        with super().watched():
            yield
        changed = before.find_change(self.held)
        if changed is not None:
            does = "may change" if UNSEEN in changed else "changes"
            reason = f"computing it {does} {changed}: state kept from one example would reach the next"
            refuse("loss", self.loss.name, reason, "make the loss keep no state")

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Write the clipped sum of examples with equal numbers of rows to `gradient`."""
        self.count = x.shape[1]
        if self.count not in self.chosen:
            self.chosen[self.count] = (self.choose_rows(self.count), {})
        self.rows, self.passes = self.chosen[self.count]
        super().clipped_sum(x, y, clip, views=views)

    def one_by_one(self, module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return (examples, d) gradients by definition: forward and backward of every example alone."""
        rows = torch.zeros(len(y), model.parameters)
        parameters = [module.get_parameter(slot.name) for slot in model.layout]
        for index in range(len(y)):
            loss = self.loss(module(x[index].clone()), y[index].clone())
            for slot, part in zip(model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                if part is not None:
                    rows[index, slot.start : slot.stop] = part.to_dense().reshape(-1)
        return rows

    def side_by_side(self, module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the same by vmap(grad): module and loss still see the rows of one example."""
        if not len(y):
            return torch.zeros(0, model.parameters)

        def loss(tensors: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
            return self.loss(call_with(module, tensors, one_x), one_y)

        per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):
            parts = per_example(model.split(weights), x.clone(), y.clone())
        return torch.cat([parts[slot.name].reshape(len(y), slot.size) for slot in model.layout], 1)

    def choose_rows(self, count: int) -> Rows:
        """Return `side_by_side` if it runs and agrees with the definition on made-up inputs, else `one_by_one`."""
        with self.watched():
            return self.side_by_side if self._agrees(count) else self.one_by_one

    def _agrees(self, count: int) -> bool:
        if any(isinstance(layer, nn.RNNBase) for layer in self.module.modules()):
            return False
        probe = self.model.module()
        x, y = probe_inputs(self.model, 3 * count), self.targets.repeat_interleave(count, 1)
        probe_arguments = (probe, self.model, flatten_module(probe), x.view(3, count, *x.shape[1:]), y)
        try:
            with torch.random.fork_rng(devices=[]):
                # In training mode too, where the module may draw at random.
                self.side_by_side(*probe_arguments)
            probe.eval()
            return rows_agree(self.side_by_side(*probe_arguments), self.one_by_one(*probe_arguments))
        except Exception:
            return False

    @override
    def gradients_apart(self, x: Tensor, y: Tensor, views: int) -> Tensor:
        try:
            return (self.run_apart if self.works_alone() else self.run_rows)(self.own_rows(), x, y)
        except Exception as error:
            if self.works_alone():
                raise
            refuse_data(self.model, error)

    @override
    def works_alone(self) -> bool:
        return self.own_rows() == self.one_by_one

    def most_examples(self, views: int) -> int:
        """Return how many examples are computed at once, from the model and the rows of an example only."""
        return max(1, super().most_examples(views) // self.count)

    @override
    def trial_inputs(self, views: int, seed: int) -> Tensor:
        return self.inputs(probe_inputs(self.model, self.count, seed=seed).numpy())[None]

    @override
    def trial_targets(self) -> Tensor:
        return self.targets[:1].repeat_interleave(self.count, 1)


@dataclass(frozen=True, eq=False)
class OwnModule:
    """A user's module taken over for clipping: the working copy and the state it was copied from."""

    model: FlatModel
    loss: OneLoss
    worker: GradientWorker
    state: ModuleState
    """State of the user's module; when a setting, buffer or frozen weight changes, the module is copied again."""
    shape: tuple[Any, ...]
    targets: Tensor
    """An empty slice of the targets: their type and shape."""
    prefix: str = ""
    """What the working copy puts before the names of the user's parameters."""

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector by the names that the parameters have in the user's module."""
        return {name.removeprefix(self.prefix): part for name, part in self.model.split(vector).items()}

    def clipped_sum(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float,
        *,
        rng: np.random.Generator | None,
        counts: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the clipped sum at these weights as a new vector, in float32 even under autocast.

        `counts` gives the number of rows of x and y per example, in order; one row each by default.

        Guarantees: an example is clipped once, over all its rows. How it is computed depends on its own number of rows
        only. An example without rows contributes zero.
        """
        self._check_labels(y)
        total = torch.zeros(self.model.parameters)
        masks = own_dropout(self.worker, rng) if rng is not None else nullcontext()
        # Clipping is exact in float32 only, so the caller's autocast is turned off; grad mode may be off there.
        with torch.enable_grad(), torch.autocast("cpu", enabled=False), masks:
            # Grouped by rows per example: kernels then see shapes that depend on an example's own rows only.
            for count, rows in rows_by_count(len(y) if counts is None else counts):
                total += self._sum_of(weights, x.detach()[rows], y.detach()[rows], count, clip_norm)
        return total

    def _sum_of(self, weights: Tensor, x: Tensor, y: Tensor, count: int, clip_norm: float) -> Tensor:
        """Return the clipped sum of examples of `count` rows each."""
        worker = self.worker if count == 1 else self.many
        worker.weights.copy_(weights)
        inputs = worker.inputs(x.numpy())
        if not isinstance(worker, LossWorker):
            worker.clipped_sum(inputs, y, clip_norm)
            return worker.gradient.clone()
        inputs, y = (rows.view(len(y) // count, count, *rows.shape[1:]) for rows in (inputs, y))
        worker.clipped_sum(inputs, y, clip_norm)
        return worker.gradient.clone()

    @cached_property
    def many(self) -> LossWorker:
        """The worker for examples of several rows: same module and loss, no fast path."""
        return self.worker if isinstance(self.worker, LossWorker) else LossWorker(self.model, self.loss, self.targets)

    def _check_labels(self, y: Tensor) -> None:
        if not isinstance(self.worker, LossWorker) and len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            reason = f"labels must be whole numbers from 0 to {self.classes - 1}, one per output of the model"
            invalid("y", f"{int(y.min())} to {int(y.max())}", reason)

    @property
    def classes(self) -> int:
        """The number of outputs of the model."""
        return self.model.classes


def rows_by_count(counts: int | Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield (rows per example, the rows of all examples with that count), without empty examples.

    >>> [(count, rows.tolist()) for count, rows in rows_by_count([2, 1, 0, 2])]
    [(1, [2]), (2, [0, 1, 3, 4])]
    """
    sizes = torch.tensor([1] * counts if isinstance(counts, int) else counts, dtype=torch.int64)
    every = torch.repeat_interleave(sizes, sizes)
    return ((int(count), torch.nonzero(every == count).view(-1)) for count in sorted(set(every.tolist())))


# Keyed weakly: an entry disappears with the user's module.
OWN: WeakKeyDictionary[nn.Module, OwnModule] = WeakKeyDictionary()


def own_module(module: nn.Module, loss: Loss | None, x: Tensor, y: Tensor, parts: Parts | None = None) -> OwnModule:
    """Return the module taken over as it is now; cached while nothing but its weights changes.

    With `parts`, x holds the parts of a dictionary, which the module gets by keywords.
    """
    if not isinstance(module, nn.Module):
        invalid("model", type(module).__name__, "is not a torch.nn.Module")
    trained = tuple(name for name, _ in trained_parameters(module))
    shape = (tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype, trained, parts)
    known = OWN.get(module)
    # A changed setting, buffer or frozen weight would make the copy another model than the user's.
    if known is None or known.loss.given is not loss or known.shape != shape or known.state.find_change() is not None:
        OWN[module] = known = take_over(module, loss, x, y, shape, parts)
    return known


def take_over(
    module: nn.Module, loss: Loss | None, x: Tensor, y: Tensor, shape: tuple[Any, ...], parts: Parts | None = None
) -> OwnModule:
    """Check a module and its loss, copy the module, and choose how clipped sums are computed."""
    check_module(module, loss)
    state = ModuleState(module, [name for name, _ in trained_parameters(module)])
    called = wrap_transformer(module) if parts is None else NamedInputs(module, parts)
    prefix = "" if called is module else "model."
    model, outputs = flat_copy(called, x)
    one_loss = OneLoss(loss)
    if unknown_part(module) is not None or not one_loss.plain:
        blame = ("loss", one_loss.name) if unknown_part(module) is None else None
        refuse_memory(model, probe_loss(one_loss, y), blame)
    labels = y.dtype == torch.int64 and y.dim() == 1
    if one_loss.plain and labels and outputs is not None and outputs.dim() == 2:
        return OwnModule(model, one_loss, worker_for(model), state, shape, y[:0], prefix)
    if loss is None:
        result = f"{y.dtype} {tuple(y.shape)}"
        invalid("loss", None, f"cross entropy needs one whole label per example, but y is {result}", "give the loss")
    return OwnModule(model, one_loss, LossWorker(model, one_loss, y), state, shape, y[:0], prefix)


def probe_loss(loss: OneLoss, y: Tensor) -> Callable[[Any, int], Tensor]:
    """Return the loss of a probe's outputs at zero targets, or a sum of squares if the loss fails there."""

    def compute(outputs: Any, count: int) -> Tensor:
        try:
            return loss(outputs, y.new_zeros(count, *y.shape[1:]))
        except Exception:
            parts = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
            return torch.stack([part.square().mean() for part in parts]).sum()

    return compute


def check_module(module: nn.Module, loss: Loss | None) -> None:
    """Raise for what cannot be clipped: batch normalisation, nothing to train, parameters that are not float32."""
    if loss is not None and not callable(loss):
        invalid("loss", loss, "must be a function of (outputs, targets)", "give torch.nn.MSELoss() or a function")
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        refuse("loss", type(loss).__name__, "the loss has trainable parameters, and their gradients would not be "
               "clipped", "make them part of the model")  # fmt: skip
    refuse_mixing_layers(module)
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            invalid("model", name, "has no shape yet (a lazy layer)", "give the layer all its sizes")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            invalid("model", f"{name} ({parameter.dtype})", "trained parameters must be float32", "call model.float()")
        if parameter.device.type != "cpu":
            invalid(
                "model", f"{name} ({parameter.device})", "private steps are computed on the CPU", "keep it on the CPU"
            )
    if not any(True for _ in trained_parameters(module)):
        invalid("model", type(module).__name__, "has no trainable parameters")


def flat_copy(module: nn.Module, x: Tensor) -> tuple[FlatModel, Tensor | None]:
    """Return the module as a flat model that copies a pristine copy, and its probe outputs if they are a tensor."""
    try:
        # All work is done on copies: the user's module, its gradients and its mode stay unchanged.
        pristine = copy.deepcopy(module)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        invalid("model", type(module).__name__, f"cannot be copied ({cause})", "make its tensors parameters")
    for parameter in pristine.parameters():
        parameter.grad = None
    vocabularies = [layer.num_embeddings for layer in pristine.modules() if isinstance(layer, nn.Embedding)]
    kind = Kind.TEXT if not x.is_floating_point() else Kind.IMAGE if x.dim() == 4 else Kind.VECTOR
    model = FlatModel(
        type(module).__name__, tuple(x.shape[1:]), 1, kind, layout_of(pristine), lambda: copy.deepcopy(pristine),
        min(vocabularies, default=2), {}, constants_of(pristine),
    )  # fmt: skip
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = model.module().eval()(probe_inputs(model, 2))
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            invalid(
                "model", model.name, f"forward fails on a batch of shape {(2, *x.shape[1:])} ({cause})", "fix forward"
            )
    if not isinstance(outputs, Tensor) or outputs.dim() < 1:
        return model, None
    return replace(model, classes=outputs.shape[-1]), outputs
