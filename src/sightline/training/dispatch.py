"""Choose the gradient worker of a model, on the CPU or on a device that passes the clipping probe."""

import os
import threading
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sightline.errors import SightlineError, invalid
from sightline.models.certificate import Objection, certificate_of
from sightline.models.flat import CPU, FlatModel, flatten_module, mixing_layer, probe_inputs, unknown_part
from sightline.models.task import probe_targets
from sightline.training.clipping import clipped_rows
from sightline.training.fast.autograd_worker import AutogradWorker, NoClippingRule
from sightline.training.fast.chains import ChainWorker, Convolution, chain_of
from sightline.training.fast.graph_worker import GraphWorker, agrees_with_examples, close_by_tensor
from sightline.training.fast.stacked import Builder
from sightline.training.fast.stacks import (
    CLIENT_FLOATS,
    GROUP_FLOATS,
    ConvStack,
    DenseSlots,
    DenseStack,
    Part,
    conv_parts,
    dense_slots,
    patch_floats,
)
from sightline.training.gradients import GradientWorker, one_by_one, vectorised_gradients
from sightline.training.local_work import BY_RULE
from sightline.training.machine import BF16, FLOAT32, check_bf16


@dataclass(frozen=True, eq=False)
class SmallConvolutional:
    """Parts of a convolutional chain that can be stacked, and the size of one example's largest patches."""

    parts: tuple[Part, ...]
    floats: int


class WorkerCache(threading.local):
    """Workers of one thread, one per model, record and precision, kept as long as the model lives."""

    def __init__(self) -> None:
        self.workers: WeakKeyDictionary[FlatModel, dict[tuple[str, str], GradientWorker]] = WeakKeyDictionary()
        """Keyed by model, then by (record, precision)."""
        self.small: WeakKeyDictionary[FlatModel, SmallConvolutional | None] = WeakKeyDictionary()
        self.reasons: WeakKeyDictionary[FlatModel, str] = WeakKeyDictionary()
        """Why a model does not run as its certified graph."""
        self.stacks: WeakKeyDictionary[FlatModel, tuple[DenseSlots, ...] | None] = WeakKeyDictionary()


# Per thread: a worker holds weights and gradient that every call overwrites.
BENCH = WorkerCache()


def worker_for(model: FlatModel, record: str = BY_RULE.record, precision: str = FLOAT32) -> GradientWorker:
    """Return the fastest worker that can train this model; the same object on every call in a thread.

    `record` is that of `Paths`: a hand-written chain with convolutions has one worker per record, every other model has
    one worker for all. A worker with `precision` bf16 takes plain steps only.
    """
    known, kind = BENCH.workers.setdefault(model, {}), (record, precision)
    if kind not in known:
        if precision != FLOAT32:
            known[kind] = half_worker(model)
        else:
            known[kind] = choose_worker(model) if record == BY_RULE.record else record_worker(model, record)
    return known[kind]


def record_worker(model: FlatModel, record: str) -> GradientWorker:
    """Return the chain worker with this record of per-example gradients, or the default one if its probe fails."""
    by_rule = worker_for(model)
    # Only convolutions have several kinds of records.
    if not isinstance(by_rule, ChainWorker) or not any(isinstance(layer, Convolution) for layer in by_rule.layers):
        return by_rule
    worker = ChainWorker(model, record)
    return worker if agrees_with_definition(worker) else by_rule


def half_worker(model: FlatModel) -> GradientWorker:
    """Return the worker that takes plain steps under torch's autocast to bfloat16; raise if the model has none.

    Guarantees: bfloat16 kernels have run in a child process on this machine; the gradient of a probe is close to the
    float32 gradient. It never clips per example: `dp_sgd` refuses bfloat16.
    """
    if model.device.type != "cpu":
        invalid(
            "local.precision",
            BF16,
            f"is available on the CPU only, not on {model.device.type}",
            'use precision = "float32"',
        )
    check_bf16()
    exact = worker_for(model)
    worker = GraphWorker(model, exact.certificate) if isinstance(exact, GraphWorker) else GradientWorker(model)
    worker.precision, worker.channels_last = BF16, exact.channels_last
    try:
        distance = half_distance(worker, exact)
    except RuntimeError as error:
        cause = " ".join(str(error).split())[:120]
        invalid("local.precision", BF16, f"{model.name} does not run in it ({cause})", 'use precision = "float32"')
    # Written so that NaN fails the comparison too.
    if not distance <= MOST_APART:
        reason = f"the gradient of {model.name} would be wrong by {distance:.0%}"
        invalid("local.precision", BF16, reason, 'use precision = "float32"')
    return worker


MOST_APART = 0.2
"""Largest allowed distance between a probe's bfloat16 and float32 gradients, relative to the float32 norm."""


def half_distance(worker: GradientWorker, exact: GradientWorker) -> float:
    """Return |bf16 gradient - gradient| / |gradient| on a probe; a graph with dropout only has to be finite."""
    model, result = worker.model, []
    x, y = probe_inputs(model, 2), probe_targets(model.task, model.classes, 2)
    for side in (worker, exact):
        side.weights.copy_(flatten_module(model.module()))
        side.probing = True
        with torch.random.fork_rng(devices=[]):
            side.mean_gradient(side.inputs(x.numpy()), y)
        side.probing = False
        result.append(side.gradient.clone())
    # Two passes draw different dropout masks, so their gradients cannot be compared.
    if isinstance(worker, GraphWorker) and worker.dropout:
        return 0.0 if bool(torch.isfinite(result[0]).all()) else float("inf")
    return float((result[0] - result[1]).norm() / result[1].norm().clamp_min(1e-30))


def clipping_note(model: FlatModel) -> str | None:
    """Return a note for the user when private training of this model takes the slow path, else None."""
    worker = worker_for(model)
    if type(worker) is not GradientWorker:
        return None
    how = "side by side" if worker.own_rows() is vectorised_gradients else "one after the other, which is slow"
    reason = BENCH.reasons.get(model, "a layer mixes examples")
    return f"{model.name}: every example is differentiated alone, {how}, instead of by ghost clipping ({reason})"


def dense_layers(model: FlatModel) -> tuple[DenseSlots, ...] | None:
    """Return the layers of a fully connected network, whose clients always train stacked; None for other models."""
    if model not in BENCH.stacks:
        worker = worker_for(model)
        BENCH.stacks[model] = dense_slots(model) if isinstance(worker, ChainWorker) else None
    return BENCH.stacks[model]


@dataclass(frozen=True, eq=False)
class Stacking:
    """How clients are stacked for plain steps."""

    build: Builder
    floats: int
    """Numbers in one example's largest patches; 0 for fully connected networks."""

    def takes(self, width: int) -> bool:
        """Return whether a client with batches of this width is stacked."""
        # A function of the client's own size only. If it depended on the other clients, a client's result would not
        # have the same bits in every cohort.
        return width * self.floats <= CLIENT_FLOATS

    def most_clients(self, width: int) -> int:
        """Return how many clients of this width are stacked together."""
        return max(2, GROUP_FLOATS // (width * self.floats)) if self.floats else 1 << 20


def stacking_for(model: FlatModel) -> Stacking | None:
    """Return how to stack clients of this model for plain steps; None means one client after the other."""
    layers = dense_layers(model)
    if layers is not None:
        return Stacking(lambda weights, gradient: DenseStack(layers, weights, gradient, model.task), 0)
    small = small_convolutional(model)
    if small is None:
        return None
    return Stacking(lambda w, g: ConvStack(small.parts, w, g, model.input_shape), small.floats)


def small_convolutional(model: FlatModel) -> SmallConvolutional | None:
    """Return the parts of a convolutional chain if its worker is a probed chain, else None."""
    if model not in BENCH.small:
        # The convolutional stack has the gradient of cross entropy only.
        chained = isinstance(worker_for(model), ChainWorker) and model.task.classic
        parts = conv_parts(model) if chained else None
        result = None if parts is None else SmallConvolutional(parts, patch_floats(parts, model.input_shape))
        BENCH.small[model] = result
    return BENCH.small[model]


def choose_worker(model: FlatModel) -> GradientWorker:
    """Return the first worker that agrees with the definition: chain, autograd rules, certified graph, plain autograd.

    A user's own module gets batches only as the graph of its certificate. No probe can show that a module keeps
    examples apart in training mode and at every batch size.
    """
    if model.device.type != "cpu":
        return device_worker(model)
    module = model.module()
    nothing = torch.empty(model.parameters)
    if model.task.own_loss is not None:
        BENCH.reasons[model] = f"it is not known how the loss {model.task.loss_name} treats a batch"
    # Where a clip applies, plain autograd refuses batch normalisation and calls a user's own loss with one example at a
    # time.
    if mixing_layer(module) is not None or model.task.own_loss is not None:
        return GradientWorker(model)
    if unknown_part(module) is None:
        chained = chain_of(module, model.layout, nothing, nothing) is not None
        for worker in (ChainWorker(model) if chained else None, None if chained else autograd_worker(model)):
            if worker is not None and agrees_with_definition(worker):
                return worker
    return graph_worker(model) or GradientWorker(model)


def place_model(model: FlatModel, device: torch.device) -> FlatModel:
    """Return the model on a device; raise if its gradients there differ from those on the CPU."""
    placed = replace(model, device=device)
    if device.type != "cpu":
        worker_for(placed)
    return placed


def device_worker(model: FlatModel) -> GradientWorker:
    """Return a plain autograd worker for another device; chains, stacks and compiled code are for the CPU only."""
    BENCH.reasons[model] = f"device {model.device.type}"
    try:
        # Errors of torch on the device become one line for the user; errors of ours already are.
        worker = GradientWorker(model)
        agrees = probe_device(worker)
    except SightlineError:
        raise
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        way_out = 'use device = "cpu"; create tensors in forward on the device of its input'
        invalid("device", model.device.type, f"{model.name} does not run there ({cause})", way_out)
    if not agrees:
        reason = f"the gradients of {model.name} differ from those on the CPU"
        invalid("device", model.device.type, reason, 'use device = "cpu"')
    return worker


def probe_device(worker: GradientWorker) -> bool:
    """Return whether a probe's gradients equal those on the CPU; models that draw at random only have to run."""
    model, separate = worker.model, mixing_layer(worker.module) is None
    x, y = probe_inputs(model, 2), probe_targets(model.task, model.classes, 2)
    worker.weights.copy_(flatten_module(model.module()))
    here = GradientWorker(replace(model, device=CPU))
    here.weights.copy_(flatten_module(model.module()))
    result = []
    for side in (worker, here):
        batch = side.inputs(x.numpy()), side.place_tensor(y)
        side.mean_gradient(*batch)
        result.append([side.hand_back(side.gradient.clone())])
        if separate:
            side.clipped_sum(*batch, 1.0)
            result[-1].append(side.hand_back(side.gradient.clone()))
    return worker.dropout or all(close_by_tensor(model, there, near, 1e-5) for there, near in zip(*result, strict=True))


def graph_worker(model: FlatModel) -> GraphWorker | None:
    """Return the worker that runs the certified graph; None without certificate or rules, or if the probe fails."""
    certificate = certificate_of(model)
    if isinstance(certificate, Objection):
        BENCH.reasons[model] = str(certificate)
        return None
    try:
        worker = GraphWorker(model, certificate)
        if agrees_with_examples(worker):
            return worker
        BENCH.reasons[model] = "ghost clipping over its graph did not agree with examples differentiated alone"
    # Any failure of a rule is safe here: the caller falls back to the exact path, one example at a time.
    except Exception as error:
        BENCH.reasons[model] = " ".join(str(error).split())[:200]
    return None


def autograd_worker(model: FlatModel) -> AutogradWorker | None:
    """Return the ghost-clipping worker, or None if a layer has no clipping rule."""
    try:
        return AutogradWorker(model)
    except NoClippingRule:
        return None


# Every fast path passes a probe against the definition (each example alone) before it is used. A layer used twice, a
# tied weight or an in-place overwrite would otherwise be clipped wrongly, and a wrong clip means an epsilon that is too
# small. Models that fail the probe get the slow, exact path.
def agrees_with_definition(worker: GradientWorker) -> bool:
    """Return whether gradient and clipped sum of a probe equal the definition, tensor by tensor."""
    model, worker.probing = worker.model, True
    x, y = probe_inputs(model, 2), probe_targets(model.task, model.classes, 2)
    worker.weights.copy_(flatten_module(model.module()))
    rows = one_by_one(model.module().eval(), model, worker.weights, x, y)
    # The median of two norms is the smaller one: one example is clipped, the other lies on the boundary.
    clip_norm = float(rows.norm(dim=1).median())
    if not 0 < clip_norm < float("inf"):
        return False
    try:
        clipped, mean = probe_worker(worker, x, y, clip_norm)
    except (NoClippingRule, RuntimeError):
        return False
    worker.probing = False
    pairs = ((clipped, clipped_rows(rows, clip_norm)), (mean, rows.mean(0)))
    return all(close_by_tensor(model, got, expected, 1e-5 * clip_norm) for got, expected in pairs)


def probe_worker(worker: GradientWorker, x: Tensor, y: Tensor, clip_norm: float) -> tuple[Tensor, Tensor]:
    """Return the worker's clipped sum and mean gradient."""
    inputs = worker.inputs(x.numpy())
    worker.clipped_sum(inputs, y, clip_norm)
    clipped = worker.gradient.clone()
    worker.mean_gradient(inputs, y)
    return clipped, worker.gradient.clone()


KINDS = ("cuda", "mps")
"""Devices other than the CPU, in the order in which "auto" tries them."""


def find_device(wanted: str) -> torch.device:
    """Return the named device; "auto" returns the first that is available and clips correctly, else the CPU.

    Guarantees: a device that is missing, or that leaves a row longer than its clip norm, is not used. On a device that
    is used, torch computes in float32 with deterministic algorithms.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if wanted == "cpu":
        return CPU
    for kind in KINDS if wanted == "auto" else (wanted,):
        if not is_available(kind):
            continue
        require_float32()
        problem = find_clipping_problem(torch.device(kind))
        if problem is None:
            return torch.device(kind)
        if wanted != "auto":
            invalid("device", kind, f"clipped sums differ from those on the CPU: {problem}", 'use device = "cpu"')
    if wanted != "auto":
        invalid("device", wanted, "torch does not find this device", 'use device = "cpu", or omit it')
    return CPU


def is_available(kind: str) -> bool:
    """Return whether torch can use a device of this kind here."""
    return torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()


def require_float32() -> None:
    """Make torch compute in float32 on devices, never in shorter formats, with deterministic algorithms.

    A round that is repeated after an interruption uses the same noise. If its value differed, the difference of the two
    releases would cancel the noise.
    """
    # cuBLAS reads the variable when the first product is computed.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True)


def find_clipping_problem(device: torch.device) -> str | None:
    """Return what is wrong with clipped sums on a device, or None. Row norms are checked in float64.

    >>> find_clipping_problem(torch.device("cpu")) is None
    True
    """
    draw = torch.Generator().manual_seed(0)
    # The longer rows exceed 2^16 numbers: a float32 norm that adds squares one by one can be 1.2e-4 short there.
    for length in (64, (1 << 16) + 64):
        rows = torch.randn(6, length, generator=draw) * torch.tensor([1e-8, 1e-3, 1.0, 1.0, 1.0, 1e8])[:, None]
        rows[3, 5], rows[4, 7] = float("nan"), float("inf")
        for number, row in enumerate(rows):
            problem = _find_row_problem(row, device, finite=number not in (3, 4))
            if problem is not None:
                return f"{problem} (a row of {length} numbers)"
        here, there = clipped_rows(rows, 1.0), clipped_rows(rows.to(device), 1.0).cpu()
        if not torch.allclose(here, there, rtol=1e-4, atol=1e-6):
            return f"the sum differs (rows of {length} numbers)"
    return None


def _find_row_problem(row: Tensor, device: torch.device, *, finite: bool) -> str | None:
    """Return what is wrong with one clipped row: a norm above 1, or a non-finite row that is not zeroed."""
    result = clipped_rows(row[None].to(device), 1.0).cpu().double()
    length = float(result.norm())
    if not finite:
        return None if length == 0 else "a non-finite row is not set to zero"
    return None if length <= 1 else f"a row clipped to 1 has norm {length:.8g}"


def describe_device(device: torch.device) -> str:
    """Return the device kind, with the model name of a CUDA device."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
