"""An LSTM written out step by step, so that the gradient of its gates can be read."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class DirectionRun:
    """One direction of one layer over one batch: inputs (B, T, K), states before (B, T, H), gates (B, T, 4 H)."""

    suffix: str
    inputs: Tensor
    before: Tensor
    gates: Tensor


class UnrolledLSTM(nn.Module):
    """The same numbers as the `nn.LSTM` it is made from, whose parameters it shares.

    With gates_t = W_ih x_t + b + W_hh h_{t-1}, the gradient of the product W_ih x_t is the gradient of the gates, and
    with it both weights' gradients are sums over t of outer products. Every run is kept in `runs`.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm
        self.runs: list[DirectionRun] = []

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """States of every token (B, T, directions * H), and the last states of every layer and direction."""
        hidden, cells = [], []
        for layer in range(self.lstm.num_layers):
            ways = [f"_l{layer}", f"_l{layer}_reverse"][: 2 if self.lstm.bidirectional else 1]
            ends = [self.run(x, suffix) for suffix in ways]
            x = torch.cat([states for states, _, _ in ends], 2)
            hidden += [h for _, h, _ in ends]
            cells += [c for _, _, c in ends]
        return x, (torch.stack(hidden), torch.stack(cells))

    def run(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor, Tensor]:
        """One direction of one layer: states in the order of the tokens, last hidden state, last cell."""
        back = suffix.endswith("reverse")
        x = x.flip(1) if back else x
        gates = self.input_gates(x, suffix)
        recurrent = getattr(self.lstm, "weight_hh" + suffix).t()
        h = c = x.new_zeros(len(x), len(recurrent))
        states = [h]
        for part in gates.unbind(1):
            i, f, new, o = torch.addmm(part, h, recurrent).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        self.runs.append(DirectionRun(suffix, x.detach(), torch.stack(states[:-1], 1).detach(), gates))
        together = torch.stack(states[1:], 1)
        return (together.flip(1) if back else together), h, c

    def input_gates(self, x: Tensor, suffix: str) -> Tensor:
        """W_ih x + b for all tokens at once, always with a gradient to be read."""
        gates: Tensor = x @ getattr(self.lstm, "weight_ih" + suffix).t()
        if self.lstm.bias:
            gates = gates + (getattr(self.lstm, "bias_ih" + suffix) + getattr(self.lstm, "bias_hh" + suffix))
        return gates if gates.requires_grad else gates.requires_grad_()


def can_unroll(layer: nn.Module) -> bool:
    """Whether the layer is a plain LSTM over (B, T, K)."""
    return type(layer) is nn.LSTM and layer.batch_first and not layer.proj_size and not layer.dropout


def unroll_lstms(module: nn.Module) -> None:
    """Put an unrolled LSTM in the place of every plain one, everywhere below `module`."""
    for name, child in module.named_children():
        if isinstance(child, nn.LSTM) and can_unroll(child):
            setattr(module, name, UnrolledLSTM(child))
        else:
            unroll_lstms(child)
