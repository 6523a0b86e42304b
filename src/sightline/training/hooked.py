"""Book-keeping for any module made of layers whose books we can write: residual blocks, norms, embeddings, LSTMs.

A twin of the module shares the worker's weights but computes no weight gradients: one backward pass gives the gradient
of every layer's output, and scribes make norms and clipped sums of them. The worker is chosen only after a probe has
shown that it agrees with the definition (every example differentiated alone), which catches layers used twice, weights
used outside their layer and examples that are mixed by hand.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.models.flat import FlatModel, bind_parameters
from sightline.training.clipping import Balls, Clip, factors_of
from sightline.training.scribes import ClippingRule, RecurrentRule, rule_for
from sightline.training.unrolled import UnrolledLSTM, unroll_lstms
from sightline.training.worker import GradientWorker, equal_chunks

RECORD_BYTES = 1 << 27
"""How much the records of one chunk of examples may take."""


class NoClippingRule(Exception):
    """This pass cannot be booked: a layer ran twice, or a recorded value was overwritten."""


class AutogradWorker(GradientWorker):
    """Autograd for plain steps, book-keeping for private ones."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self.twin = model.module().requires_grad_(False)
        bind_parameters(self.twin, model.layout, self.weights)
        unroll_lstms(self.twin)
        self.seen: dict[str, tuple[Tensor, Tensor, int]] = {}
        self.scribes: dict[str, ClippingRule] = {}
        self.recurrent: dict[tuple[str, str], RecurrentRule] = {}
        self.attach_rules(model.split(self.gradient))
        self.per_chunk = 1
        self.measured = False

    def attach_rules(self, gradient: dict[str, Tensor]) -> None:
        """Give every layer with parameters its scribe; raise `Unbookable` when one has none."""
        taken = 0
        for name, layer in self.twin.named_modules():
            if isinstance(getattr(layer, "inplace", None), bool):
                layer.inplace = False
            words = [] if isinstance(layer, nn.LSTM) else [word for word, _ in layer.named_parameters(recurse=False)]
            if any(tensor_name(name, word) not in gradient for word in words):
                raise NoClippingRule(f"layer {name} shares a parameter with another, or has a frozen one")
            own = {word: gradient[tensor_name(name, word)] for word in words}
            if isinstance(layer, UnrolledLSTM):
                taken += self.attach_recurrent(name, layer, gradient)
            elif own:
                kind = rule_for(layer)
                if kind is None:
                    raise NoClippingRule(f"no books for {type(layer).__name__}")
                self.scribes[name] = kind(layer, own)
                layer.register_forward_hook(lambda _, inputs, output, name=name: self.see_layer(name, inputs, output))
                taken += len(own)
        if taken != len(self.model.layout):
            raise NoClippingRule("a parameter belongs to no known layer")

    def attach_recurrent(self, name: str, layer: UnrolledLSTM, gradient: dict[str, Tensor]) -> int:
        """One scribe per direction and layer of an LSTM."""
        words = [word for word, _ in layer.lstm.named_parameters()]
        for suffix in {word.split("_", 2)[2] for word in words}:
            own = {
                w.rsplit("_" + suffix, 1)[0]: gradient[f"{name}.{w}".lstrip(".")]
                for w in words
                if w.split("_", 2)[2] == suffix
            }
            self.recurrent[name, "_" + suffix] = RecurrentRule(own)
        return len(words)

    def see_layer(self, name: str, inputs: Any, output: Tensor) -> None:
        """Remember a layer's input and output, and make sure that the output's gradient can be read."""
        if name in self.seen or len(inputs) != 1:
            raise NoClippingRule(f"layer {name} ran twice or takes more than one input")
        if not output.requires_grad:
            output.requires_grad_()
        self.seen[name] = (inputs[0].detach(), output, inputs[0]._version)

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Books where this pass can be booked, else the definition; always the definition with several views."""
        if views > 1:
            super().clipped_sum(x, y, clip, views=views)
            return
        self.twin.train(not self.probing)
        if not self.measured and len(y):
            self.per_chunk, self.measured = max(1, RECORD_BYTES // self.record_bytes(x[:1], y[:1])), True
        self.gradient.zero_()
        try:
            for some in equal_chunks(len(y), self.per_chunk):
                self.add_clipped(x[some], y[some], clip)
        except NoClippingRule:
            if self.probing:
                raise
            super().clipped_sum(x, y, clip)

    def record_bytes(self, x: Tensor, y: Tensor) -> int:
        """What the books of one example take."""
        self.output_gradients(x, y)
        ends = [(a, z) for a, z, _ in self.seen.values()]
        kernels = sum(9 * a.numel() if z.dim() == 4 else a.numel() for a, z in ends)
        return 4 * (kernels + 3 * sum(z.numel() for _, z in ends) + min(self.model.parameters, 1 << 22))

    def output_gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], int]:
        """One forward and one backward pass: gradients of all recorded outputs, those of the gates last."""
        self.seen.clear()
        lstms = {name: layer for name, layer in self.twin.named_modules() if isinstance(layer, UnrolledLSTM)}
        for layer in lstms.values():
            layer.runs.clear()
        loss = functional.cross_entropy(self.twin(x), y, reduction="sum")
        if any(a._version != version for a, _, version in self.seen.values()):
            raise NoClippingRule("a layer's input was overwritten")
        self.runs = {(name, run.suffix): run for name, layer in lstms.items() for run in layer.runs}
        if len(self.runs) != sum(len(layer.runs) for layer in lstms.values()):
            raise NoClippingRule("an LSTM ran twice")
        ends = [output for _, output, _ in self.seen.values()] + [run.gates for run in self.runs.values()]
        return list(torch.autograd.grad(loss, ends)), len(self.seen)

    def add_clipped(self, x: Tensor, y: Tensor, clip: Clip) -> None:
        """Add the clipped sum of one chunk."""
        if self.recurrent and isinstance(clip, Balls):
            raise NoClippingRule("the weights of an LSTM are not booked apart")
        gradients, plain = self.output_gradients(x, y)
        norms = [
            named_norms(n, self.scribes[n].read(seen[0], g))
            for (n, seen), g in zip(self.seen.items(), gradients[:plain], strict=True)
        ]
        norms += [
            {"": self.recurrent[key].read(run, g)}
            for (key, run), g in zip(self.runs.items(), gradients[plain:], strict=True)
        ]
        finite, factors = factors_of(norms, clip)
        if not bool(finite.all()):
            if bool(finite.any()):
                self.add_clipped(x[finite], y[finite], clip)
            return
        for name in self.seen:
            own = {word: factors(tensor_name(name, word)) for word in self.scribes[name].gradient}
            self.scribes[name].add_clipped(own)
        for key in self.runs:
            self.recurrent[key].add_clipped(factors(""))


def tensor_name(layer: str, word: str) -> str:
    """The name of a layer's tensor in the model."""
    return f"{layer}.{word}".lstrip(".")


def named_norms(layer: str, norms: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer's norms under the full names of its tensors."""
    return {tensor_name(layer, word): square for word, square in norms.items()}
