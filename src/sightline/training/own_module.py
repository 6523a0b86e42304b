"""Clipped gradients of a torch module and a loss that somebody has in hand: for loops that are not ours."""

import copy
from collections.abc import Callable, Iterator
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

from sightline.data.federation import Kind
from sightline.errors import invalid, refuse
from sightline.models.flat import FlatModel, constants_of, flatten_module, layout_of, probe_inputs, trained_parameters
from sightline.models.mixing import refuse_mixing_layers, unknown_part
from sightline.models.state import ModuleState, refuse_memory
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import check_clip_norm
from sightline.training.gradients import GradientWorker, Rows, call_with, own_dropout, refuse_data, rows_agree

Loss = Callable[[Any, Tensor], Tensor]
"""(outputs, targets) of a batch of one example -> its loss."""


def clipped_gradient(
    model: nn.Module,
    loss: Loss | None,
    x: Tensor,
    y: Tensor,
    clip_norm: float,
    *,
    rng: np.random.Generator | None = None,
) -> dict[str, Tensor]:
    r"""sum_j g_j min(1, C / |g_j|) by parameter name, g_j being the gradient of loss(model(x_j), y_j) of example j.

    `loss` is any function of (outputs, targets); None is cross entropy. It is given one example at a time, as a batch
    of one, and so is a model of which it is not known that it treats examples apart; plain cross entropy on layers that
    are known is clipped by the fast paths. Frozen parameters have no entry. The sum has no noise: it is not private.

    Guarantees: adding or removing one example moves the sum by at most C, over all parameters together; a non-finite
    g_j contributes zero; an empty batch gives zeros; the model, its gradients and its mode are left as they are;
    batch normalisation, and a model or loss that keeps anything of what it has seen, are refused. With `rng` dropout
    masks come from it.

    >>> model = nn.Linear(2, 2)
    >>> summed = clipped_gradient(model, nn.CrossEntropyLoss(), torch.ones(3, 2), torch.tensor([0, 1, 1]), 0.1)
    >>> sorted(summed), bool(torch.cat([part.flatten() for part in summed.values()]).norm() <= 0.3)
    (['bias', 'weight'], True)
    """
    check_clip_norm(clip_norm)
    check_batch(x, y)
    own = own_module(model, loss, x, y)
    return own.model.split(own.clipped_sum(flatten_module(model), x, y, clip_norm, rng=rng))


def check_batch(x: Any, y: Any) -> None:
    """Refuse what is no batch: two tensors in this machine's memory with one row per example."""
    for name, rows in (("x", x), ("y", y)):
        if not isinstance(rows, Tensor):
            invalid(name, type(rows).__name__, "a batch is a pair (x, y) of tensors")
        if rows.device.type != "cpu":
            invalid(name, rows.device, "private steps are computed on the CPU", "leave model and batches there")
        if not rows.dim() or len(rows) != len(x):
            invalid(name, tuple(rows.shape), "x and y have one row per example")
    if x.is_floating_point() and x.dtype != torch.float32:
        invalid("x", x.dtype, "inputs are float32 or whole numbers", "call .float() in the data set")


def reduction_of(loss: Loss | None) -> str:
    """Whether an optimiser with this loss wants the mean over the batch or the sum."""
    return "sum" if getattr(loss, "reduction", "mean") == "sum" else "mean"


@dataclass(frozen=True, eq=False)
class OneLoss:
    """A loss as it is applied to one example: a batch of one in, one number out.

    Class weights stay weights: torch's weighted mean would divide them by their sum, which over one example is itself.
    """

    given: Loss | None

    @property
    def plain(self) -> bool:
        """Whether it is cross entropy as the fast paths compute it."""
        loss = self.given
        if loss is None or loss is functional.cross_entropy:
            return True
        if type(loss) is not nn.CrossEntropyLoss or "forward" in vars(loss) or loss._forward_hooks:
            return False
        usual = loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
        return usual and not loss._forward_pre_hooks and loss.reduction != "none"

    @cached_property
    def function(self) -> Loss:
        """The loss itself, or the same with its weights kept."""
        loss = self.given
        if loss is None:
            return functional.cross_entropy
        weighted = getattr(loss, "weight", None) is not None and isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        if not weighted and getattr(loss, "reduction", None) != "none":
            return loss
        apart = copy.copy(loss)
        apart.reduction = "none"  # type: ignore[attr-defined]
        whole = torch.sum if reduction_of(loss) == "sum" else torch.mean
        return lambda outputs, targets: whole(apart(outputs, targets))

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of one example."""
        value = self.function(outputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            invalid("loss", shape, "the loss of one example, a batch of one, is one number")
        return value.reshape(())


class LossWorker(GradientWorker):
    """Any module with any loss: module and loss are given one example at a time, side by side where torch.func can.

    Guarantees: those of `GradientWorker.clipped_sum`; a loss that keeps anything of what it has seen is refused.
    """

    def __init__(self, model: FlatModel, loss: OneLoss, targets: Tensor) -> None:
        super().__init__(model)
        self.loss, self.targets = loss, targets.new_zeros(3, *targets.shape[1:])
        self.holder = nn.Module()
        self.holder.__dict__["loss"] = loss.given

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse a loss that computing it has changed, beside a module that has."""
        before = ModuleState(self.holder, ())
        with super().watched():
            yield
        place = before.find_change()
        if place is not None:
            law = f"computing it changes {place}: what it keeps of one example would reach the next"
            refuse("loss", getattr(self.loss.given, "__name__", type(self.loss.given).__name__), law, "keep nothing")

    def one_by_one(self, module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The definition: forward and backward of every example on its own."""
        rows = torch.zeros(len(y), model.parameters)
        parameters = [module.get_parameter(slot.name) for slot in model.layout]
        for one in range(len(y)):
            loss = self.loss(module(x[one : one + 1].clone()), y[one : one + 1].clone())
            for slot, part in zip(model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                if part is not None:
                    rows[one, slot.start : slot.stop] = part.to_dense().reshape(-1)
        return rows

    def side_by_side(self, module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The same by vmap(grad): module and loss still see a batch of one."""
        if not len(y):
            return torch.zeros(0, model.parameters)

        def loss(tensors: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
            return self.loss(call_with(module, tensors, one_x.unsqueeze(0)), one_y.unsqueeze(0))

        per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):
            parts = per_example(model.split(weights), x.clone(), y.clone())
        return torch.cat([parts[slot.name].reshape(len(y), slot.size) for slot in model.layout], 1)

    def own_rows(self) -> Rows:
        """Side by side when that runs and agrees with the definition on inputs that are nobody's, chosen once."""
        if self.rows is None:
            with self.watched():
                self.rows = self.side_by_side if self._agrees() else self.one_by_one
        return self.rows

    def _agrees(self) -> bool:
        if any(isinstance(layer, nn.RNNBase) for layer in self.module.modules()):
            return False
        probe, x = self.model.module(), probe_inputs(self.model, 3)
        some = (probe, self.model, flatten_module(probe), x, self.targets)
        try:
            with torch.random.fork_rng(devices=[]):
                self.side_by_side(*some)  # in training, where it may draw at random
            probe.eval()
            return rows_agree(self.side_by_side(*some), self.one_by_one(*some))
        except Exception:
            return False

    def gradients_apart(self, x: Tensor, y: Tensor, views: int) -> Tensor:
        """(examples, d): every example's own gradient."""
        try:
            return self.own_rows()(self.module, self.model, self.weights, x, y)
        except Exception as error:
            if self.works_alone():
                raise
            refuse_data(self.model, error)

    def works_alone(self) -> bool:
        """Whether every example has a pass of its own."""
        return self.own_rows() == self.one_by_one

    def trial_targets(self) -> Tensor:
        """A target of zeros, as the probe has it."""
        return self.targets[:1]


@dataclass(frozen=True, eq=False)
class OwnModule:
    """A module of somebody's own, taken over for clipping: a copy that is worked on, and what it was copied from."""

    model: FlatModel
    loss: OneLoss
    worker: GradientWorker
    state: ModuleState
    """Of the module itself: a setting, buffer or frozen weight that is changed later is copied anew."""
    shape: tuple[Any, ...]

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip_norm: float, *, rng: np.random.Generator | None
    ) -> Tensor:
        """The clipped sum at these weights as one vector, a copy; in float32, whatever the caller has turned on."""
        self._check_labels(y)
        self.worker.weights.copy_(weights)
        masks = own_dropout(self.worker, rng) if rng is not None else nullcontext()
        with torch.enable_grad(), torch.autocast("cpu", enabled=False), masks:
            self.worker.clipped_sum(self.worker.inputs(x.detach().numpy()), y.detach(), clip_norm)
        return self.worker.gradient.clone()

    def _check_labels(self, y: Tensor) -> None:
        if not isinstance(self.worker, LossWorker) and len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            law = f"a label is a whole number from 0 to {self.classes - 1}, as many as the model has outputs"
            invalid("y", f"{int(y.min())} to {int(y.max())}", law)

    @property
    def classes(self) -> int:
        """How many outputs the model has."""
        return self.model.classes


OWN: WeakKeyDictionary[nn.Module, OwnModule] = WeakKeyDictionary()


def own_module(module: nn.Module, loss: Loss | None, x: Tensor, y: Tensor) -> OwnModule:
    """The module as it is now, taken over; the same one as long as nothing about it changes but its weights."""
    if not isinstance(module, nn.Module):
        invalid("model", type(module).__name__, "is no torch.nn.Module")
    shape = (tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype, tuple(n for n, _ in trained_parameters(module)))
    known = OWN.get(module)
    if known is None or known.loss.given is not loss or known.shape != shape or known.state.find_change() is not None:
        OWN[module] = known = take_over(module, loss, x, y, shape)
    return known


def take_over(module: nn.Module, loss: Loss | None, x: Tensor, y: Tensor, shape: tuple[Any, ...]) -> OwnModule:
    """Check a module and its loss, copy it, and choose how its clipped sums are computed."""
    check_module(module, loss)
    state = ModuleState(module, [name for name, _ in trained_parameters(module)])
    model, outputs = flat_copy(module, x)
    if unknown_part(module) is not None and outputs is not None and outputs.dim() == 2:
        refuse_memory(model)
    one = OneLoss(loss)
    labels = y.dtype == torch.int64 and y.dim() == 1
    if one.plain and labels and outputs is not None and outputs.dim() == 2:
        return OwnModule(model, one, worker_for(model), state, shape)
    if loss is None:
        found = f"{y.dtype} {tuple(y.shape)}"
        invalid("loss", None, f"cross entropy wants whole labels, one per example, and y is {found}", "give the loss")
    return OwnModule(model, one, LossWorker(model, one, y), state, shape)


def check_module(module: nn.Module, loss: Loss | None) -> None:
    """Refuse what cannot be clipped: batch normalisation, nothing to train, numbers that are not float32."""
    if loss is not None and not callable(loss):
        invalid("loss", loss, "is a function of (outputs, targets)", "give torch.nn.MSELoss() or a function")
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        refuse("loss", type(loss).__name__, "it has parameters of its own, and no clip would bound them",
               "make them part of the model")  # fmt: skip
    refuse_mixing_layers(module)
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            invalid("model", name, "has no shape yet (a lazy layer)", "give its layer all its sizes")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            invalid("model", f"{name} ({parameter.dtype})", "trained parameters are float32", "call model.float()")
        if parameter.device.type != "cpu":
            invalid("model", f"{name} ({parameter.device})", "private steps are computed on the CPU", "leave it there")
    if not any(True for _ in trained_parameters(module)):
        invalid("model", type(module).__name__, "it has no parameters that are trained")


def flat_copy(module: nn.Module, x: Tensor) -> tuple[FlatModel, Tensor | None]:
    """The module as a flat model whose factory copies a copy, and its outputs for a probe where they are a tensor."""
    try:
        pristine = copy.deepcopy(module)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        invalid("model", type(module).__name__, f"cannot be copied ({cause})", "let its tensors be parameters")
    for parameter in pristine.parameters():
        parameter.grad = None
    words = [layer.num_embeddings for layer in pristine.modules() if isinstance(layer, nn.Embedding)]
    kind = Kind.TEXT if not x.is_floating_point() else Kind.IMAGE if x.dim() == 4 else Kind.VECTOR
    model = FlatModel(
        type(module).__name__, tuple(x.shape[1:]), 1, kind, layout_of(pristine), lambda: copy.deepcopy(pristine),
        min(words, default=2), {}, constants_of(pristine),
    )  # fmt: skip
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = model.module().eval()(probe_inputs(model, 2))
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            invalid("model", model.name, f"fails on a batch of shape {(2, *x.shape[1:])} ({cause})", "fix its forward")
    if not isinstance(outputs, Tensor) or outputs.dim() < 1:
        return model, None
    return replace(model, classes=outputs.shape[-1]), outputs
