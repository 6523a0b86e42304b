"""Modules with the verdict that they must get: what people write, and attempts to be certified while mixing examples.

`objects` is the operation at which the proof must end; None means that the module is certified.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPES: dict[str, tuple[int, ...]] = {"vector": (8,), "image": (3, 8, 8), "sequence": (6, 8), "tokens": (6,)}
VOCABULARY = 12
DRAWS = np.random.default_rng(0)


def rows_of(kind: str, batch: int = 3, seed: int = 0) -> Tensor:
    """A batch of this kind of input."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "tokens":
        return torch.randint(VOCABULARY, (batch, *SHAPES[kind]), generator=generator)
    return torch.randn((batch, *SHAPES[kind]), generator=generator)


class Net(nn.Module):
    """Layers, bare parameters and buffers by name, and a forward of one line."""

    def __init__(self, forward: Callable[["Net", Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / 3)


@dataclass(frozen=True)
class Case:
    """One module: what it is, how it is built, on which input, and where the proof must end."""

    says: str
    build: Callable[[], nn.Module]
    kind: str = "vector"
    objects: str | None = None


CASES: dict[str, Case] = {}


def case(
    name: str, says: str, build: Callable[[], nn.Module], kind: str = "vector", objects: str | None = None
) -> None:
    """Add a case."""
    assert name not in CASES
    CASES[name] = Case(says, build, kind, objects)


def net(name, says, forward, kind="vector", objects=None, **parts):
    """Add a case of one line; `parts` are factories of layers, parameters and buffers."""
    case(name, says, lambda: Net(forward, **{word: make() for word, make in parts.items()}), kind, objects)


def head(inputs: int = 8) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, 3)


def attention(**settings):
    return lambda: nn.MultiheadAttention(8, 2, **settings)


# -- certified -------------------------------------------------------------------------------------------------------

case("linear", "Linear", lambda: nn.Linear(8, 3))
case(
    "mlp", "Linear, ReLU, Dropout", lambda: nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 3))
)
case(
    "cnn", "Conv2d, MaxPool2d, Flatten",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)), "image",
)  # fmt: skip
net(
    "resnet", "residual block with GroupNorm",
    lambda s, x: s.out(functional.adaptive_avg_pool2d(functional.relu(s.norm(s.two(h := s.one(x))) + h), 1).flatten(1)),
    "image", one=lambda: nn.Conv2d(3, 4, 3), two=lambda: nn.Conv2d(4, 4, 3, padding=1),
    norm=lambda: nn.GroupNorm(2, 4), out=head(4),
)  # fmt: skip
case(
    "instance-norm", "InstanceNorm2d without running statistics",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(144, 3)),
    "image",
)  # fmt: skip
net("lstm", "LSTM, last step", lambda s, x: s.out(s.rnn(x)[0][:, -1]), "sequence",
    rnn=lambda: nn.LSTM(8, 5, batch_first=True), out=head(5))  # fmt: skip
net("gru", "two-layer GRU with dropout, hidden state", lambda s, x: s.out(s.rnn(x)[1][-1]), "sequence",
    rnn=lambda: nn.GRU(8, 5, 2, batch_first=True, dropout=0.1), out=head(5))  # fmt: skip
net("rnn-time-first", "bidirectional RNN on (time, batch, features)",
    lambda s, x: s.out(s.rnn(x.transpose(0, 1))[0].mean(0)), "sequence",
    rnn=lambda: nn.RNN(8, 5, bidirectional=True), out=head(10))  # fmt: skip
net("multihead", "MultiheadAttention", lambda s, x: s.out(s.att(x, x, x, need_weights=False)[0].mean(1)), "sequence",
    att=attention(batch_first=True), out=head())  # fmt: skip
net("multihead-weights", "MultiheadAttention that also returns its weights",
    lambda s, x: s.out(s.att(x, x, x)[0].mean(1)), "sequence", att=attention(batch_first=True), out=head())  # fmt: skip
net("encoder", "Transformer encoder, class token, bare positions",
    lambda s, x: s.out(s.enc(torch.cat([s.cls.expand(len(x), -1, -1), x + s.pos], 1))[:, 0]), "sequence",
    enc=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
    cls=lambda: parameter(1, 1, 8), pos=lambda: parameter(6, 8), out=head())  # fmt: skip
net("decoder", "Transformer decoder that asks learned queries",
    lambda s, x: s.out(s.dec(s.ask.expand(x.shape[0], -1, -1), x).flatten(1)), "sequence",
    dec=lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), ask=lambda: parameter(2, 8),
    out=head(16))  # fmt: skip
net("causal", "attention with a causal mask", lambda s, x: s.out(
    functional.scaled_dot_product_attention(s.q(x), s.k(x), x, is_causal=True).mean(1)), "sequence",
    q=lambda: nn.Linear(8, 8), k=lambda: nn.Linear(8, 8), out=head())  # fmt: skip
net("einsum-attention", "attention by einsum and a fixed triangle",
    lambda s, x: s.out(torch.einsum("bts,bsd->btd", torch.softmax(
        torch.einsum("btd,bsd->bts", s.q(x), x).masked_fill(torch.ones(6, 6).triu(1).bool(), -1e9), -1), x)[:, -1]),
    "sequence", q=lambda: nn.Linear(8, 8), out=head())  # fmt: skip
net("rotary", "RMSNorm, rotary positions, SwiGLU",
    lambda s, x: s.out((functional.silu(s.a(h := torch.cat([
        (y := s.norm(x))[..., :4] * s.cos - y[..., 4:] * s.sin, y[..., :4] * s.sin + y[..., 4:] * s.cos], -1)))
        * s.b(h)).mean(1)), "sequence",
    norm=lambda: nn.RMSNorm(8), a=lambda: nn.Linear(8, 8), b=lambda: nn.Linear(8, 8), cos=lambda: torch.rand(6, 4),
    sin=lambda: torch.rand(6, 4), out=head())  # fmt: skip
net("lora", "frozen layer with a low-rank correction", lambda s, x: s.out(functional.relu(s.base(x) + x @ s.a.T @ s.b.T)),
    base=lambda: nn.Linear(8, 8).requires_grad_(False), a=lambda: parameter(2, 8), b=lambda: parameter(8, 2),
    out=head())  # fmt: skip
case("weight-norm", "weight_norm", lambda: nn.Sequential(
    nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3)))  # fmt: skip
net("embedding", "Embedding with padding, mean over positions", lambda s, x: s.out(s.emb(x).mean(1)), "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 5, padding_idx=0), out=head(5))  # fmt: skip
net("tied", "embedding and output layer share their weights",
    lambda s, x: functional.linear(s.emb(x).mean(1), s.emb.weight)[:, :3], "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 5))  # fmt: skip
net("positions", "embeddings of tokens and of arange positions",
    lambda s, x: s.out((s.emb(x) + s.pos(torch.arange(6))).flatten(1)), "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 4), pos=lambda: nn.Embedding(6, 4), out=head(24))  # fmt: skip
net("last-token", "x[arange(batch), place of the last token]",
    lambda s, x: s.out(s.emb(x)[torch.arange(x.shape[0]), (x != 0).long().sum(1).clamp(max=5)]), "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 5), out=head(5))  # fmt: skip
net("masked-mean", "mean over the tokens that are not padding",
    lambda s, x: s.out((s.emb(x) * (m := (x != 0).unsqueeze(-1))).sum(1) / m.sum(1).clamp(min=1)), "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 5), out=head(5))  # fmt: skip
net("conv-text", "Conv1d over embedded text, max over time",
    lambda s, x: s.out(functional.relu(s.conv(s.emb(x).transpose(1, 2))).amax(-1)), "tokens",
    emb=lambda: nn.Embedding(VOCABULARY, 5), conv=lambda: nn.Conv1d(5, 4, 3), out=head(4))  # fmt: skip
net("mixer", "MLP-Mixer: dense over positions, dense over channels",
    lambda s, x: s.out(s.channel(x + s.token(s.norm(x).transpose(1, 2)).transpose(1, 2)).mean(1)), "sequence",
    norm=lambda: nn.LayerNorm(8), token=lambda: nn.Linear(6, 6), channel=lambda: nn.Linear(8, 8), out=head())  # fmt: skip
net("unet", "down, up, skip connection, pixel shuffle",
    lambda s, x: s.out(torch.cat([functional.interpolate(s.down(x), scale_factor=2), functional.pixel_shuffle(
        s.wide(functional.avg_pool2d(x, 2)), 2)], 1).mean((2, 3))), "image",
    down=lambda: nn.Conv2d(3, 4, 3, 2, 1), wide=lambda: nn.Conv2d(3, 8, 1), out=head(6))  # fmt: skip
net("transposed-conv", "ConvTranspose2d, reflection padding, PReLU",
    lambda s, x: s.out(s.slope(s.up(functional.pad(x, (1, 1, 1, 1), mode="reflect"))).amax((2, 3))), "image",
    up=lambda: nn.ConvTranspose2d(3, 4, 2, 2), slope=lambda: nn.PReLU(4), out=head(4))  # fmt: skip
net("squeeze-excite", "channels scaled by their own means",
    lambda s, x: s.out((x * torch.sigmoid(s.gate(x.mean((2, 3))))[..., None, None]).flatten(1)), "image",
    gate=lambda: nn.Linear(3, 3), out=head(192))  # fmt: skip
net("patches", "patches by unfold, dense over them",
    lambda s, x: s.out(s.one(functional.unfold(x, 4, stride=4).transpose(1, 2)).flatten(1)), "image",
    one=lambda: nn.Linear(48, 5), out=head(20))  # fmt: skip
net("spatial-transformer", "each image sampled by its own affine map",
    lambda s, x: s.out(functional.grid_sample(x, functional.affine_grid(
        s.map(x.flatten(1)).view(-1, 2, 3), list(x.shape), False), align_corners=False).flatten(1)), "image",
    map=lambda: nn.Linear(192, 6), out=head(192))  # fmt: skip
net("cell-loop", "LSTMCell in a Python loop", lambda s, x: s.out(_unroll(s.cell, x)), "sequence",
    cell=lambda: nn.LSTMCell(8, 5), out=head(5))  # fmt: skip
net("in-place", "rows edited in place", lambda s, x: s.out(_edit(s.one(x))), one=lambda: nn.Linear(8, 8), out=head())
net("noise", "Gaussian noise on every value in training",
    lambda s, x: s.out(x + 0.1 * torch.randn_like(x) if s.training else x), out=head())  # fmt: skip
net("stochastic-depth", "each example skips the block by its own draw",
    lambda s, x: s.out(x + s.one(x) * (torch.rand(len(x), 1) < 0.8 if s.training else 1.0)),
    one=lambda: nn.Linear(8, 8), out=head())  # fmt: skip
net(
    "gumbel", "gumbel_softmax", lambda s, x: functional.gumbel_softmax(s.out(x)) if s.training else s.out(x), out=head()
)
case("feature-dropout", "Dropout2d, AlphaDropout", lambda: nn.Sequential(
    nn.Dropout2d(0.3), nn.Flatten(), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(192, 3)), "image")  # fmt: skip
net("prototypes", "cosine similarity to learned prototypes",
    lambda s, x: functional.normalize(x, dim=-1) @ functional.normalize(s.centres, dim=-1).T,
    centres=lambda: parameter(3, 8))  # fmt: skip
net("top-k", "mean of the two largest features, sorted features",
    lambda s, x: s.out(torch.cat([x.topk(2, -1).values, x.sort(-1).values], -1)), out=head(10))  # fmt: skip
net("soft-experts", "a weighted sum of experts by each example's own gate",
    lambda s, x: torch.einsum("be,bec->bc", torch.softmax(s.gate(x), -1), torch.stack([s.one(x), s.two(x)], 1)),
    gate=lambda: nn.Linear(8, 2), one=head(), two=head())  # fmt: skip
net("fourier", "random Fourier features in a buffer", lambda s, x: s.out(torch.cos(x @ s.waves + s.shift)),
    waves=lambda: torch.randn(8, 9), shift=lambda: torch.rand(9), out=head(9))  # fmt: skip
net("bilinear", "Bilinear of two halves", lambda s, x: s.pair(x[:, :4], x[:, 4:]), pair=lambda: nn.Bilinear(4, 4, 3))
net("shared-noise", "one random number for the whole batch",
    lambda s, x: s.out(x * (1 + torch.rand(())) if s.training else x), out=head())  # fmt: skip
net("bounded-cumsum", "running sums along time, gates by where",
    lambda s, x: s.out(torch.where(x > 0, x.cumsum(1), -x)[:, -1]), "sequence", out=head())  # fmt: skip
net("repeats", "examples repeated, then averaged over the copies",
    lambda s, x: s.out(x.repeat_interleave(2, 0).view(-1, 2, 8).mean(1)), out=head())  # fmt: skip
net("folded-time", "time folded into the batch and back",
    lambda s, x: s.out(s.one(x.reshape(-1, 8)).view(-1, 6, 8).amax(1)), "sequence", one=lambda: nn.Linear(8, 8),
    out=head())  # fmt: skip
net("length", "zeros(len(x), ...) beside the input", lambda s, x: s.out(torch.cat([x, torch.zeros(len(x), 1)], 1)),
    out=head(9))  # fmt: skip


class FrozenNorm(nn.BatchNorm1d):
    """Batch normalisation that stays with fixed statistics, as fine-tuning does."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)


case("frozen-norm", "BatchNorm1d kept in evaluation", lambda: nn.Sequential(FrozenNorm(8), nn.Linear(8, 3)))


def _unroll(cell: nn.LSTMCell, x: Tensor) -> Tensor:
    state = (torch.zeros(x.shape[0], 5), torch.zeros(x.shape[0], 5))
    for step in x.unbind(1):
        state = cell(step, state)
    return state[0]


def _edit(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = 1.0
    x[:, 1:3].mul_(2.0)
    return x.relu_()


# -- refused: what people write --------------------------------------------------------------------------------------

case("batch-norm", "BatchNorm2d", lambda: nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)), "image", "forward")  # fmt: skip
case("batch-norm-no-statistics", "BatchNorm1d of the batch at hand", lambda: nn.Sequential(
    nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)), "vector",
    "_native_batch_norm_legit.no_stats")  # fmt: skip
case("tracked-instance-norm", "InstanceNorm with running statistics", lambda: nn.Sequential(
    nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), nn.Linear(192, 3)), "image", "instance_norm.default")  # fmt: skip
net("centred", "centring over the batch in training", lambda s, x: s.out(x - x.mean(0) if s.training else x),
    objects="mean.dim", out=head())  # fmt: skip
net("centred-in-evaluation", "centring over the batch in evaluation only",
    lambda s, x: s.out(x if s.training else x - x.mean(0)), objects="mean.dim", out=head())  # fmt: skip
net(
    "scaled",
    "divided by the spread of all values",
    lambda s, x: s.out(x / x.std()),
    objects="std.correction",
    out=head(),
)
net("batch-softmax", "softmax over the batch", lambda s, x: s.out(x).softmax(0), objects="softmax.int", out=head())
net("divided", "divided by the batch size", lambda s, x: s.out(x / x.shape[0]), objects="div.Tensor", out=head())
net("batch-attention", "attention between examples", lambda s, x: s.out(torch.softmax(x @ x.T, -1) @ x),
    objects="matmul.default", out=head())  # fmt: skip
net("wrong-batch-first", "MultiheadAttention that takes the batch for time",
    lambda s, x: s.out(s.att(x, x, x, need_weights=False)[0].mean(1)), "sequence",
    "scaled_dot_product_attention.default", att=attention(), out=head())  # fmt: skip
net("lstm-time-first", "LSTM that takes the batch for time", lambda s, x: s.out(s.rnn(x)[0][:, -1]), "sequence",
    "export", rnn=lambda: nn.LSTM(8, 5), out=head(5))  # fmt: skip
net("moving-average", "a buffer that follows the mean in place",
    lambda s, x: s.out(x - s.mu.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)), objects="forward",
    mu=lambda: torch.zeros(8), out=head())  # fmt: skip
case("spectral-norm", "spectral_norm keeps an iterate", lambda: nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3)), "vector",
    "wrap_with_set_grad_enabled")  # fmt: skip
net("max-norm", "Embedding(max_norm) writes into its weights", lambda s, x: s.out(s.emb(x).mean(1)), "tokens",
    "forward", emb=lambda: nn.Embedding(VOCABULARY, 5, max_norm=1.0), out=head(5))  # fmt: skip
net("frequency", "Embedding(scale_grad_by_freq) counts tokens of the batch in its backward pass",
    lambda s, x: s.out(s.emb(x).mean(1)), "tokens", "embedding.default",
    emb=lambda: nn.Embedding(VOCABULARY, 5, scale_grad_by_freq=True), out=head(5))  # fmt: skip
net("sparse", "Embedding(sparse)", lambda s, x: s.out(s.emb(x).mean(1)), "tokens", "embedding.default",
    emb=lambda: nn.Embedding(VOCABULARY, 5, sparse=True), out=head(5))  # fmt: skip
net("embedding-bag", "EmbeddingBag", lambda s, x: s.out(s.emb(x)), "tokens", "arange.start_step",
    emb=lambda: nn.EmbeddingBag(VOCABULARY, 5), out=head(5))  # fmt: skip
net("no-grad-region", "a region under torch.no_grad()", lambda s, x: s.out(x) + _without_gradient(s.two, x),
    objects="wrap_with_set_grad_enabled", out=head(), two=head())  # fmt: skip
net("item", ".item() of a maximum", lambda s, x: s.out(x) * x.max().item(), objects="max.default", out=head())
net("boolean-mask", "a boolean mask selects values", lambda s, x: s.out(x) * x[x > 0].mean(), objects="index.Tensor",
    out=head())  # fmt: skip
net(
    "data-branch",
    "an if on values",
    lambda s, x: s.out(x / 2 if x.abs().max() > 3 else x),
    objects="export",
    out=head(),
)
net("size-branch", "an if on the batch size", lambda s, x: s.out(x if x.shape[0] < 5 else x - x.mean(0)),
    objects="export", out=head())  # fmt: skip
net("python-loop", "a Python loop over the batch", lambda s, x: torch.stack([s.out(row) for row in x]),
    objects="export", out=head())  # fmt: skip
net("numpy", "numpy in between", lambda s, x: s.out(torch.from_numpy(np.tanh(x.numpy()))), objects="export", out=head())
net("several", "forward returns two tensors", lambda s, x: (s.out(x), x), objects="forward", out=head())


def _without_gradient(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)


# -- refused: attempts to mix ----------------------------------------------------------------------------------------


def attack(name, says, forward, objects, kind="vector", **parts):
    """Add a one-line attempt to mix examples."""
    net(name, says, forward, kind, objects, **{"out": head(), **parts})


class MixingBackward(torch.autograd.Function):
    """The identity, with a backward pass that mixes."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


class Remembering(nn.Module):
    """Adds the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.last = nn.Linear(8, 3), None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach()
        return self.out(x if before is None or before.shape != x.shape else x + before)


class Hooked(nn.Module):
    """A linear layer with a hook of some kind."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.out, self.how = nn.Linear(8, 3), how
        if how == "forward":
            self.out.register_forward_hook(lambda module, given, result: result - result.mean(0))
        if how == "backward":
            self.out.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] - gradient[0].mean(0),))

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(x)
        if self.how == "tensor" and y.requires_grad:
            y.register_hook(lambda gradient: gradient - gradient.mean(0))
        return y


case("custom-backward", "an autograd.Function whose backward mixes", lambda: Net(
    lambda s, x: MixingBackward.apply(s.out(x)), out=nn.Linear(8, 3)), "vector", "forward")  # fmt: skip
case("python-cache", "adds the batch before from an attribute", Remembering, "vector", "forward")
case("forward-hook", "a hook that centres over the batch", lambda: Hooked("forward"), "vector", "mean.dim")
case("backward-hook", "a hook that mixes gradients", lambda: Hooked("backward"), "vector", "forward")
case("tensor-hook", "a hook on a tensor that mixes gradients", lambda: Hooked("tensor"), "vector", "forward")
attack("roll", "examples shifted by one", lambda s, x: s.out(x + x.roll(1, 0)), "roll.default")
attack("roll-flat", "all numbers shifted by one", lambda s, x: s.out(x + x.roll(1)), "roll.default")
attack("flip", "the batch backwards", lambda s, x: s.out(x + x.flip(0)), "flip.default")
attack("mixup", "random partners", lambda s, x: s.out(x + x[torch.randperm(x.shape[0])]), "randperm.default")
attack("random-partner", "partners by random numbers of the batch",
       lambda s, x: s.out(x + x[torch.rand(x.shape[0]).argsort()]), "argsort.default")  # fmt: skip
attack("first-example", "minus the first example", lambda s, x: s.out(x - x[0]), "select.int")
attack("neighbours", "shifted by joining slices", lambda s, x: s.out(x + torch.cat([x[1:], x[:1]])), "export")
attack("every-other", "every second example, twice", lambda s, x: s.out(x[::2].repeat_interleave(2, 0)[: len(x)]),
       "export")  # fmt: skip
attack("last-slice", "the last example broadcast", lambda s, x: s.out(x - x[-1:]), "slice.Tensor")
attack("pairs", "all differences of pairs", lambda s, x: s.out((x[:, None] - x[None]).mean(1)), "sub.Tensor")
attack("transposed-sum", "a product over the batch", lambda s, x: s.out(x @ (x.T @ x)), "matmul.default")
attack("einsum-sum", "einsum that drops the batch", lambda s, x: s.out(x * torch.einsum("bd,bd->d", x, x)),
       "einsum.default")  # fmt: skip
attack("einsum-pairs", "einsum of pairs", lambda s, x: s.out(torch.einsum("bd,cd,ce->be", x, x, x)), "einsum.default")
attack("einsum-implicit", "einsum that leaves out its result", lambda s, x: s.out(x + torch.einsum("ij,ij", x, x)),
       "einsum.default")  # fmt: skip
attack("swapped-view", "transposed, then reshaped across examples",
       lambda s, x: s.out(x.transpose(0, 1).reshape(x.shape[0], 48)), "export", "sequence",
       out=head(48))  # fmt: skip
attack("wrong-fold", "time folded into the batch and back in the wrong order",
       lambda s, x: s.out(x.reshape(-1, 8).view(6, -1, 8).mean(0)), "view.default", "sequence")  # fmt: skip
attack("two-halves", "the batch cut into two halves", lambda s, x: s.out(x.reshape(2, -1, 8).sum(0).repeat(2, 1)),
       "export")  # fmt: skip
attack(
    "flat-view", "all numbers in one row", lambda s, x: s.out(x + x.flatten().cumsum(0).view(-1, 8)), "cumsum.default"
)
attack("batch-sort", "sorted over the batch", lambda s, x: s.out(x.sort(0).values), "sort.default")
attack("batch-cumsum", "running sums over the batch", lambda s, x: s.out(x.cumsum(0)), "cumsum.default")
attack("batch-max", "the largest of the batch", lambda s, x: s.out(x - x.amax(0, keepdim=True)), "amax.default")
attack("negative-dim", "a sum over the batch by a negative axis", lambda s, x: s.out(x - x.sum(-2, keepdim=True)),
       "sum.dim_IntList")  # fmt: skip
attack("all-axes", "amax with an empty list of axes", lambda s, x: s.out(x - torch.amax(x, ())), "amax.default")
attack("argmax-flat", "argmax of all numbers", lambda s, x: s.out(x) + x.argmax(), "argmax.default")
attack("norm-flat", "the norm of the whole batch", lambda s, x: s.out(x / torch.linalg.vector_norm(x)),
       "linalg_vector_norm.default")  # fmt: skip
attack("zero-times-sum", "a sum times nothing", lambda s, x: s.out(x + 0.0 * x.sum()), "sum.default")
attack("position", "times the position in the batch", lambda s, x: s.out(x * torch.arange(x.shape[0])[:, None]),
       "mul.Tensor")  # fmt: skip
attack("position-table", "a table by the position in the batch",
       lambda s, x: s.out(x + s.table[torch.arange(x.shape[0]) % 4]), "remainder.Scalar",
       table=lambda: parameter(4, 8))  # fmt: skip
attack("position-embedding", "an embedding of the position in the batch",
       lambda s, x: s.out(x + s.emb(torch.arange(x.shape[0]))), "embedding.default",
       emb=lambda: nn.Embedding(99, 8))  # fmt: skip
attack("filled-size", "the batch size as a number in a tensor",
       lambda s, x: s.out(x) + torch.full((x.shape[0], 1), x.shape[0]), "full.default")  # fmt: skip
attack("counted-size", "the batch size by counting ones", lambda s, x: s.out(x) / torch.ones(x.shape[0]).sum(),
       "sum.default")  # fmt: skip
attack("size-tensor", "torch.tensor(len(x))", lambda s, x: s.out(x) / torch.tensor(x.shape[0]), "scalar_tensor.default")
attack("scaled-by-size", "the batch size as an exponent", lambda s, x: s.out(x) * 0.9 ** x.shape[0], "sym_float")
attack("size-slice", "as many features as examples", lambda s, x: s.out(x) + x[:, : x.shape[0]].sum(1, keepdim=True),
       "export")  # fmt: skip
attack("size-threshold", "dropout by the batch size",
       lambda s, x: s.out(x) * (torch.rand(x.shape[0], 1) * x.shape[0] > 1), "mul.Tensor")  # fmt: skip
attack("linspace", "linspace along the batch", lambda s, x: s.out(x) + torch.linspace(0, 1, x.shape[0])[:, None],
       "export")  # fmt: skip
attack("unwritten", "memory that was not written", lambda s, x: s.out(x + torch.empty_like(x)), "empty_like.default")
attack("unwritten-then-sign", "a sign of memory that was not written",
       lambda s, x: s.out(x) * torch.empty(x.shape[0], 1).sign(), "empty.memory_format")  # fmt: skip
attack("own-index", "examples picked by their own values", lambda s, x: s.out(x[(x[:, 0] > 0).long()]), "index.Tensor")
attack("batch-gather", "gather along the batch", lambda s, x: s.out(x.gather(0, (x > 0).long())), "gather.default")
attack("batch-scatter", "scatter_add along the batch",
       lambda s, x: s.out(torch.zeros_like(x).scatter_add(0, (x > 0).long(), x)), "scatter_add.default")  # fmt: skip
attack("batch-select", "index_select along the batch", lambda s, x: s.out(x - x.index_select(0, torch.tensor([1]))),
       "index_select.default")  # fmt: skip
attack("masked-scatter", "masked_scatter hands values on", lambda s, x: s.out(x.masked_scatter(x > 0, x)),
       "masked_scatter.default")  # fmt: skip
attack("distances", "cdist between examples", lambda s, x: s.out(torch.softmax(torch.cdist(x, x), -1) @ x),
       "export")  # fmt: skip
attack("covariance", "whitening by the batch's covariance", lambda s, x: s.out(x @ torch.cov(x.T)), "export")
attack("quantile", "a quantile of the batch", lambda s, x: s.out(x - x.quantile(0.5, 0)), "export")
attack("median-flat", "the median of all numbers", lambda s, x: s.out(x - x.median()), "median.default")
attack("histogram", "counts of the batch", lambda s, x: s.out(x) + torch.histc(x, 3), "histc.default")
attack("channels", "Conv1d that takes the batch for channels", lambda s, x: s.out(s.conv(x)), "export",
       conv=lambda: nn.Conv1d(3, 3, 1))  # fmt: skip
attack("grouped-conv", "Conv1d over examples laid side by side",
       lambda s, x: s.out(s.conv(x.reshape(1, 1, -1)).view(-1, 8)), "conv1d.default",
       conv=lambda: nn.Conv1d(1, 1, 3, padding=1))  # fmt: skip
attack("pool-batch", "pooling over the batch", lambda s, x: s.out(functional.max_pool1d(x.T, 3, 1, 1).T),
       "export")  # fmt: skip
attack("pad-batch", "padding of the batch", lambda s, x: s.out(functional.pad(x, (0, 0, 1, 0))[:-1]),
       "pad.default")  # fmt: skip
attack("norm-transposed", "LayerNorm over the batch", lambda s, x: s.out(functional.layer_norm(x.T, (x.shape[0],)).T),
       "layer_norm.default")  # fmt: skip
attack("group-norm-transposed", "GroupNorm with the batch as channels",
       lambda s, x: s.out(functional.group_norm(x.T[None], 1)[0].T), "group_norm.default")  # fmt: skip
attack("lstm-unbatched", "LSTM that reads the batch as one sequence", lambda s, x: s.out(s.rnn(x)[0]), "export",
       rnn=lambda: nn.LSTM(8, 8))  # fmt: skip
attack("causal-batch", "causal attention over the batch",
       lambda s, x: s.out(functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]),
       "scaled_dot_product_attention.default")  # fmt: skip
attack("shared-keys", "every example asks the keys of the first",
       lambda s, x: s.out(functional.scaled_dot_product_attention(x, x[:1].expand_as(x), x).mean(1)), "slice.Tensor",
       "sequence")  # fmt: skip
attack("triangle", "a triangle over batch and features", lambda s, x: s.out(x.tril()), "tril.default")
attack("diagonal", "the diagonal of batch and features", lambda s, x: s.out(x) + x.diagonal().sum(), "diagonal.default")
attack("squeezed", "squeeze() of every axis of length one", lambda s, x: s.out(x.squeeze()), "squeeze.default")
attack("fft-batch", "a Fourier transform over the batch", lambda s, x: s.out(torch.fft.fft(x, dim=0).real),
       "export")  # fmt: skip
attack("bits", "bits read as another type", lambda s, x: s.out(x.view(torch.int32).float()), "view.dtype")
attack("strided", "as_strided", lambda s, x: s.out(x.as_strided((x.shape[0], 8), (0, 1))), "as_strided.default")
attack("written-input", "writes into its input", lambda s, x: s.out(x.mul_(2.0)), "forward")
attack("unique", "distinct values of the batch", lambda s, x: s.out(x) + x.unique().numel(), "_unique2.default")
attack("fixed-rows", "a fixed tensor with a row for each example", lambda s, x: s.out(x + s.table), "export",
       table=lambda: torch.randn(3, 8))  # fmt: skip
attack("stale-weight", "a weight by another way", lambda s, x: s.out(x) + x @ s.keep[0].T, "forward",
       keep=lambda: [torch.randn(3, 8, requires_grad=True)])  # fmt: skip
attack("python-random", "Python's own random numbers", lambda s, x: s.out(x) * float(DRAWS.random()), "forward")
attack("gradient-of", "a gradient taken inside forward",
       lambda s, x: s.out(x + torch.autograd.grad(s.out(x.detach().requires_grad_()).sum(), s.out.weight,
                                                  create_graph=True)[0].sum()), "sum.default")  # fmt: skip


@torch.library.custom_op("certificate_cases::centre", mutates_args=())
def centre(x: Tensor) -> Tensor:
    """A user's operation, in which anything may happen."""
    return x - x.mean(0)


centre.register_fake(torch.empty_like)
centre.register_autograd(lambda ctx, gradient: gradient - gradient.mean(0))

attack("custom-operation", "an operation of one's own that centres", lambda s, x: s.out(centre(x)),
       "certificate_cases::centre.default")  # fmt: skip
attack("layer-drop", "Python's random number decides whether a layer is skipped",
       lambda s, x: s.out(x if random.random() < 1e-9 else x + s.one(x)), "forward",
       one=lambda: nn.Linear(8, 8))  # fmt: skip
attack("strides", "a stride that holds the batch size",
       lambda s, x: s.out(x[:, 0]) / x.transpose(0, 1).contiguous().stride(0), "div.Tensor", "sequence")  # fmt: skip
attack("shape-tensor", "the shape as a tensor", lambda s, x: s.out(x) / torch._shape_as_tensor(x)[0],
       "export")  # fmt: skip
attack("one-over-size", "softmax of zeros along the batch",
       lambda s, x: s.out(x) * torch.zeros(x.shape[0]).softmax(0)[:, None], "softmax.int")  # fmt: skip
attack("own-weights", "a convolution with kernels made of the batch",
       lambda s, x: s.out(functional.conv1d(x, x[:1], padding=0).flatten(1)), "slice.Tensor", "sequence",
       out=head(1))  # fmt: skip
attack("wrong-copies", "copies of the batch averaged with other examples'",
       lambda s, x: s.out(x.repeat(2, 1).view(-1, 2, 8).mean(1)), "view.default")  # fmt: skip
