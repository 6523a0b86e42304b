"""Export a module in training and evaluation mode, prove its graphs keep examples apart, and compare them with it.

The proof is about the graph, and the graph is what runs. Made-up inputs check that it computes what the module computes
(a difference would change the model, not the guarantee).
"""

import copy
import io
import logging
import random
import re
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, fx, nn

from sightline.models.certificate.rules import VERSIONS, Certificate, CertifiedGraph, Objection
from sightline.models.certificate.walk import Located, operation_name, raise_at, refuse_regions, tag_graph
from sightline.models.flat import FlatModel, probe_inputs, trained_parameters

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LOCK = threading.RLock()
"""torch.export is not thread-safe."""

FOUND: "WeakKeyDictionary[FlatModel, Certificate | Objection]" = WeakKeyDictionary()
SLOWER = "otherwise it runs one example at a time"


def certificate_of(model: FlatModel) -> Certificate | Objection:
    """Return the certificate of a flat model, cached while the model lives. Takes about a second, mostly in export.

    >>> from sightline.data.federation import Kind
    >>> from sightline.models import build_model
    >>> model = build_model("linear", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={})
    >>> sorted(certificate_of(model).parameters.values())
    ['output.bias', 'output.weight']
    """
    with LOCK:
        if model not in FOUND:
            FOUND[model] = certify_module(model.module(), probe_inputs(model, 3))
        return FOUND[model]


def certify_module(module: nn.Module, inputs: Tensor) -> Certificate | Objection:
    """Return a proof that the module keeps the examples of a batch apart, or the first objection.

    Guarantees: for every batch size, row i of a certificate's output, and every gradient of it, is a function of row i
    of the input, of parameters and of random numbers that do not depend on data. A module that cannot be exported,
    copied or run gives an objection, not an error. The module and torch's random state are left unchanged.
    """
    # Rules are statements about ATen operations of a given version. With another version nothing is certified, and
    # modules run one example at a time.
    if torch.__version__.rpartition(".")[0] not in VERSIONS:
        reason = f"the rules were checked for torch {', '.join(VERSIONS)}, but this is {torch.__version__}"
        return Objection("torch", "", reason, f"install one of them; {SLOWER}")
    with LOCK, quiet_export():
        try:
            training = certify_mode(module, inputs, training=True)
            evaluation = certify_mode(module, inputs, training=False)
            certificate = Certificate(**vars(training), evaluation=evaluation)
            check_fidelity(module, certificate, inputs)
        except Located as result:
            return objection_at(result)
        except Exception as error:
            return objection_from(error)
    return certificate


@contextmanager
def quiet_export() -> Iterator[None]:
    """Suppress warnings, logs, fused paths and random draws of the export; enable gradients."""
    disabled, fast_path = logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled()
    logging.disable(logging.CRITICAL)
    # The fused path of attention would be one opaque operation without a rule.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.enable_grad(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            # torch.export prints graphs when it fails.
            for redirect in (redirect_stdout, redirect_stderr):
                stack.enter_context(redirect(io.StringIO()))
            yield
    finally:
        logging.disable(disabled)
        torch.backends.mha.set_fastpath_enabled(fast_path)


# -- export ----------------------------------------------------------------------------------------------------------


def certify_mode(module: nn.Module, inputs: Tensor, *, training: bool) -> CertifiedGraph:
    """Return the graph of a copy of the module in training or evaluation mode, with a tag for every node."""
    own = copy.deepcopy(module).train(training)
    exported = export_module(own, inputs)
    exported.graph.eliminate_dead_code()
    exported.graph_module.recompile()
    axes = tag_graph(exported)
    return CertifiedGraph(exported, axes, **placeholder_names(own, exported))


def export_module(module: nn.Module, inputs: Tensor) -> "ExportedProgram":
    """Return the functional graph of a module for any batch size, with layers kept whole."""
    from torch.export import Dim, export

    shapes = ({0: Dim("batch")},)
    try:
        raw = export(module, (inputs.clone(),), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        if "specialized" not in str(error):
            raise
        # Strict mode follows len(x), which the other mode turns into a constant.
        raw = export(module, (inputs.clone(),), dynamic_shapes=shapes, strict=True)
    for graph_module in raw.graph_module.modules():
        if isinstance(graph_module, fx.GraphModule):
            refuse_regions(graph_module.graph)
    functional: ExportedProgram = raw.run_decompositions({})
    return functional


def placeholder_names(module: nn.Module, exported: "ExportedProgram") -> dict[str, Any]:
    """Return what each placeholder except the input gets: a parameter or buffer by its one name, or a constant."""
    signature = exported.graph_signature
    if signature.inputs_to_lifted_custom_objs:
        raise_at(None, "forward uses objects that are not tensors", "use tensors")
    parameters = one_names(dict(module.named_parameters(remove_duplicate=False)))
    buffers = one_names(dict(module.named_buffers(remove_duplicate=False)))
    result: dict[str, Any] = {"parameters": {}, "buffers": {}, "constants": {}}
    for node in exported.graph.nodes:
        if node.op != "placeholder" or node.name in signature.user_inputs:
            continue
        if (name := signature.inputs_to_parameters.get(node.name)) is not None:
            result["parameters"][node] = parameters[name]
        elif (name := signature.inputs_to_buffers.get(node.name)) is not None:
            result["buffers"][node] = buffers[name]
        else:
            name = signature.inputs_to_lifted_tensor_constants[node.name]
            result["constants"][node] = plain_constant(exported.constants[name], module)
    return result


def one_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return every name of a tensor -> its first name, so that tied tensors have one."""
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in tensors.items()}


def plain_constant(value: Any, module: nn.Module) -> Tensor:
    """Return a tensor made by the code; raise if it is a weight that is not registered, which would go stale."""
    if not isinstance(value, Tensor):
        raise_at(None, "forward uses objects that are not tensors", "use tensors")
    own = {tensor.untyped_storage().data_ptr() for tensor in chain(module.parameters(), module.buffers())}
    if value.requires_grad or value.untyped_storage().data_ptr() in own - {0}:
        raise_at(None, "forward uses a weight that is not registered", "register it as a parameter or buffer")
    return value.detach()


# -- objections ------------------------------------------------------------------------------------------------------

FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')
INSTALLED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines are not the user's own code."""


def objection_at(located: Located) -> Objection:
    """Return the objection at a node, with the user's line that created it."""
    node = located.node
    name = "the result" if node is not None and node.op == "output" else operation_name(node) if node else "forward"
    source = "" if node is None else source_line(str(node.meta.get("stack_trace") or "")) or layer_name(node)
    return Objection(located.operation or name, source, located.reason, located.way_out or f"rewrite it; {SLOWER}")


def source_line(trace: str) -> str:
    """Return "file.py:12: code" for the last line in a trace that is not torch's, or an empty string.

    >>> source_line('File "/home/me/net.py", line 12, in forward\\n    return x + x.mean(0)')
    'net.py:12: return x + x.mean(0)'
    """
    own = [frame for frame in FRAME.findall(trace) if not frame[0].startswith(INSTALLED)]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}: {own[-1][2].strip()}" if own else ""


def layer_name(node: fx.Node) -> str:
    """Return name and type of the layer that contains an operation, for chains of torch's own layers."""
    layers = list((node.meta.get("nn_module_stack") or {}).values())
    if not layers:
        return ""
    name, kind = layers[-1]
    return f"layer {name or 'model'} ({str(getattr(kind, '__name__', kind)).rpartition('.')[2]})"


def objection_from(error: Exception) -> Objection:
    """Return the objection for an error of torch.export or of the module itself."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if "specialized" in text or "Constraints violated" in text:
        reason, way_out = (
            "its code depends on the batch size",
            "use x.shape[0] only in computations, without branches",
        )
    elif "data-dependent" in text or "DataDependent" in text:
        reason, way_out = "its code branches on values of the data", "use torch.where"
    else:
        reason, way_out = f"torch.export cannot follow it ({text[:160]})", "write it with tensor operations only"
    return Objection("export", error_line(error), reason, f"{way_out}; {SLOWER}")


def error_line(error: BaseException) -> str:
    """Return the user's own line in which an error arose."""
    trace: TracebackType | None = error.__traceback__
    own = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(INSTALLED)]
    if own and own[-1].line:
        return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}"
    return ""


# -- the graph against the module ------------------------------------------------------------------------------------


def check_fidelity(module: nn.Module, certificate: Certificate, inputs: Tensor) -> None:
    """Raise unless the graph gives the module's results and gradients in both modes, at several sizes and weights."""
    own, drawn = copy.deepcopy(module), other_draws()
    for rows in (inputs, inputs[:1], inputs.flip(0)):
        for training in (True, False):
            own.train(training)
            tensors = {**dict(own.named_parameters()), **dict(own.named_buffers())}
            graph = certificate if training else certificate.evaluation
            expected, got = outcome(own, own, rows), outcome(own, partial(graph.run, tensors), rows)
            if not all(close_enough(*pair) for pair in zip(got, expected, strict=True)):
                mode = "training" if training else "evaluation"
                reason = (
                    f"the exported graph differs from the module in results or gradients ({len(rows)} rows, {mode})"
                )
                way_out = "make forward a function of its input, without caches, mode changes or custom gradients"
                raise_at(None, reason, f"{way_out}; {SLOWER}")
        with torch.no_grad():
            for _, parameter in trained_parameters(own):
                # Other weights for the next comparison: a graph with a weight baked in as a constant agrees at the
                # start only.
                parameter.data.mul_(1.25)
    if other_draws() != drawn:
        reason = "forward draws from Python's or numpy's generator, which a graph cannot reproduce"
        raise_at(None, reason, f"draw from torch's generator; {SLOWER}")


def other_draws() -> str:
    """Return the state of the global generators of Python and numpy."""
    return f"{random.getstate()}{np.random.get_state()}"  # noqa: NPY002


def outcome(module: nn.Module, function: Any, rows: Tensor) -> list[Tensor]:
    """Return the output of a batch and the gradients of a weighted sum of it, from fixed random draws."""
    torch.manual_seed(0)
    result: Tensor = function(rows.clone())
    weights = torch.linspace(-1.0, 1.5, result.numel()).view(result.shape)
    parameters = [parameter for _, parameter in trained_parameters(module)]
    gradients = torch.autograd.grad((result * weights).sum(), parameters, allow_unused=True) if parameters else ()
    return [result.detach(), *(torch.zeros(()) if part is None else part.to_dense() for part in gradients)]


def close_enough(got: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors agree to rounding, relative to the largest entry; a scalar stands for all zeros."""
    if got.dim() and expected.dim() and got.shape != expected.shape:
        return False
    slack = 1e-5 + 1e-4 * float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return torch.allclose(got, expected, rtol=1e-3, atol=slack, equal_nan=True)
