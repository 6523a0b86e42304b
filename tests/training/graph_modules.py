"""Modules with every kind of use that the graph path knows, and the shape and kind of their inputs."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from sightline.data import Kind
from sightline.models import FlatModel
from sightline.models.flat import constants_of, layout_of, make_module
from sightline.models.registry import TokenLogits

VECTOR, IMAGE, SEQUENCE, TOKENS = (8,), (3, 8, 8), (6, 8), (6,)
CLASSES, VOCABULARY = 3, 20


def head(width):
    return nn.Linear(width, CLASSES)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.chain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5, bias=False), nn.Tanh(), head(5))

    def forward(self, x):
        return self.chain(x)


class Bare(nn.Module):
    """Parameters that belong to no layer: scales, shifts, matrices from both sides, an own table."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.shift = nn.Parameter(torch.randn(8))
        self.right = nn.Parameter(torch.randn(8, 5) / 3)
        self.left = nn.Parameter(torch.randn(4, 6) / 3)
        self.stack = nn.Parameter(torch.randn(4, 5, 5) / 3)
        self.vector = nn.Parameter(torch.randn(5))
        self.turn = nn.Parameter(torch.randn(5, 5) / 3)
        self.last = head(9)

    def forward(self, x):
        h = torch.tanh(x * self.scale + self.shift) @ self.right
        h = torch.einsum("ik, btk -> bti", self.turn, h)
        h = self.left @ h  # (B, 4, 5)
        h = torch.tanh(h + torch.matmul(h.unsqueeze(2), self.stack).squeeze(2))
        return self.last(torch.cat([h.mean(1), h @ self.vector], 1))


class Reused(nn.Module):
    """One layer at three depths, transposed as well, and its bias by itself."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), head(8)

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        h = torch.tanh(self.layer(h) + self.layer.bias)
        return self.last(h @ self.layer.weight + functional.linear(h, self.layer.weight))


class Convolutions(nn.Module):
    """Strided, dilated, grouped, transposed and "same" convolutions with norms of channels."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.PReLU(8), nn.Conv2d(8, 8, 3, groups=4, padding="same"),
            nn.InstanceNorm2d(8, affine=True), nn.PReLU(), nn.Conv2d(8, 6, 3, stride=2, dilation=2, padding=2, bias=False),
            nn.ConvTranspose2d(6, 4, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.wide = nn.Conv2d(4, 40, 2)  # one position: its gradients stay outer products
        self.line = nn.Conv1d(5, 6, 3)
        self.last = head(40 + 6)

    def forward(self, x):
        h = self.body(x)
        rows = self.line(h.flatten(1)[:, :15].unflatten(1, (5, 3)))
        return self.last(torch.cat([self.wide(h).flatten(1), rows.flatten(1)], 1))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), head(8)
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
        )

    def forward(self, x):
        h = self.first(x)
        return self.last(functional.relu(h + self.block(h)).mean((2, 3)))


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv3d(1, 4, 3), head(4)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.unsqueeze(1))).mean((2, 3, 4)))


class Recurrent(nn.Module):
    """A GRU whose first state is trained, above an LSTM of two directions without biases."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 5, bidirectional=True, bias=False, batch_first=True)
        self.gru = nn.GRU(10, 7)
        self.begin = nn.Parameter(torch.randn(1, 1, 7) / 3)
        self.last = head(7)

    def forward(self, x):
        states, _ = self.lstm(x)
        _, end = self.gru(states.transpose(0, 1), self.begin.expand(1, len(x), 7).contiguous())
        return self.last(end[0])


def recurrent_alone(kind):
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = kind(8, 7, num_layers=2, batch_first=True), head(7)

        def forward(self, x):
            return self.last(self.layer(x)[0][:, -1])

    return Alone


class Attention(nn.Module):
    """Self attention with the batch in the second place, and cross attention whose projections are cut apart."""

    def __init__(self):
        super().__init__()
        self.own, self.cross = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)
        self.queries = nn.Parameter(torch.randn(2, 8))
        self.last = head(8)

    def forward(self, x):
        h = x.transpose(0, 1)
        h = self.own(h, h, h, need_weights=False)[0].transpose(0, 1)
        queries = self.queries.expand(len(x), -1, -1)
        return self.last(self.cross(queries, h, h, need_weights=False)[0].mean(1))


class Encoder(nn.Module):
    """A transformer encoder with bare positions and a token of its own for the class."""

    def __init__(self, layers=1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.positions, self.token = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(1, 1, 8))
        self.last = head(8)

    def forward(self, x):
        h = torch.cat([self.token.expand(len(x), -1, -1), x + self.positions], 1)
        return self.last(self.encoder(h)[:, 0])


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), head(8)

    def forward(self, x):
        return self.last(functional.dropout(torch.tanh(self.first(x)), 0.3, self.training))


class Lora(nn.Module):
    """A frozen layer with trained factors beside it; a second one into which they are merged."""

    def __init__(self):
        super().__init__()
        self.base, self.merged = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(8, 2))
        self.last = head(8)

    def forward(self, x):
        h = torch.tanh(self.base(x) + x @ self.down.T @ self.up.T)
        return self.last(functional.linear(h, self.merged.weight + self.up @ self.down, self.merged.bias))


def weight_normed():
    wrap = nn.utils.parametrizations.weight_norm
    return nn.Sequential(wrap(nn.Linear(8, 8)), nn.Tanh(), wrap(nn.Linear(8, 5)), nn.Tanh(), head(5))


class Orthogonal(nn.Module):
    """A matrix made of a parameter by a matrix exponential, used twice."""

    def __init__(self):
        super().__init__()
        self.raw, self.last = nn.Parameter(torch.randn(8, 8) / 4), head(8)

    def forward(self, x):
        turn = self.raw - self.raw.T
        turn = turn + 0.5 * turn @ turn
        return self.last(torch.tanh(x @ turn) @ turn)


class Tied(nn.Module):
    """A table that is the output matrix as well, with positions looked up at fixed places; padding is left out."""

    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width)
        self.positions, self.kinds = nn.Embedding(9, width), nn.Embedding(4, width, padding_idx=2)
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.last = head(VOCABULARY)
        self.register_buffer("places", torch.arange(9))

    def forward(self, x):
        h = self.table(x) + self.positions(self.places[: x.shape[1]]) + self.kinds(x % 4)
        h = self.norm(torch.tanh(self.mix(h)))
        return self.last(functional.linear(h, self.table.weight).mean(1))


class HandTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(VOCABULARY, 5)), head(5)

    def forward(self, x):
        return self.last(torch.tanh(self.table[x]).mean(1))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.first.weight.requires_grad_(False)
        self.norm, self.last = nn.LayerNorm(8).requires_grad_(False), head(8)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.rms = nn.Linear(8, 8), head(8), nn.RMSNorm(8)
        self.register_buffer("mean", torch.linspace(-1, 1, 8))
        self.register_buffer("mask", torch.ones(8, 8).tril(), persistent=False)

    def forward(self, x):
        return self.last(self.rms(self.first(x - self.mean) @ self.mask))


class Unused(nn.Module):
    """Parameters that the result does not depend on, or only in a branch without a gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.idle, self.gate, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), head(8)

    def forward(self, x):
        h = self.first(x)
        return self.last(h * (self.gate(x).detach() > 0) + 0 * self.gate.bias.detach())


class ScoreBias(nn.Module):
    """Attention with a trained bias of the scores, as relative positions have it."""

    def __init__(self):
        super().__init__()
        self.packed, self.last = nn.Linear(8, 24), head(8)
        self.bias = nn.Parameter(torch.randn(2, 6, 6))

    def forward(self, x):
        q, k, v = self.packed(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.last(functional.scaled_dot_product_attention(q, k, v, self.bias[None]).mean(2).flatten(1))


@dataclass(frozen=True)
class Case:
    make: object
    shape: tuple[int, ...]
    kind: Kind = Kind.VECTOR
    classes: int = CLASSES


QUICK = {
    "bare": Case(Bare, SEQUENCE), "reused": Case(Reused, VECTOR), "convolutions": Case(Convolutions, IMAGE, Kind.IMAGE),
    "recurrent": Case(Recurrent, SEQUENCE), "encoder": Case(Encoder, SEQUENCE), "lora": Case(Lora, VECTOR),
    "tied": Case(Tied, TOKENS, Kind.TEXT),
}  # fmt: skip
"""Between them every rule; few, because each is exported once."""

MORE = {
    "mlp": Case(Mlp, VECTOR), "resnet": Case(ResNet, IMAGE, Kind.IMAGE),
    "volume": Case(Volume, (5, 6, 4)), "lstm": Case(recurrent_alone(nn.LSTM), SEQUENCE),
    "gru": Case(recurrent_alone(nn.GRU), SEQUENCE), "attention": Case(Attention, SEQUENCE),
    "two layers": Case(lambda: Encoder(2), SEQUENCE), "weight norm": Case(weight_normed, VECTOR),
    "orthogonal": Case(Orthogonal, VECTOR), "hand table": Case(HandTable, TOKENS, Kind.TEXT), "frozen": Case(Frozen, VECTOR),
    "buffers": Case(Buffers, VECTOR), "unused": Case(Unused, VECTOR), "score bias": Case(ScoreBias, SEQUENCE),
}  # fmt: skip


def model_of(case):
    """A flat model of a case."""
    module = make_module(case.make, seed=0)
    constants = {name: one.clone() for name, one in constants_of(module).items()}
    return FlatModel(
        "case", case.shape, case.classes, case.kind, layout_of(module), case.make, VOCABULARY, {}, constants
    )


@cache
def cases_of_hugging_face():
    """Small models of transformers and peft, made from their configuration."""
    import peft
    import transformers

    bert = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, num_labels=CLASSES,
    )  # fmt: skip
    gpt = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=8,
        use_cache=False,
        pad_token_id=0,
        num_labels=CLASSES,
    )

    def lora():
        chosen = peft.LoraConfig(r=2, target_modules=["query", "value"], lora_dropout=0.0)
        return TokenLogits(peft.get_peft_model(transformers.BertForSequenceClassification(bert), chosen))

    text = {"shape": TOKENS, "kind": Kind.TEXT}
    return {
        "bert": Case(lambda: TokenLogits(transformers.BertForSequenceClassification(bert)), **text),
        "gpt2": Case(lambda: TokenLogits(transformers.GPT2ForSequenceClassification(gpt), use_cache=False), **text),
        "gpt2 tied": Case(
            lambda: TokenLogits(transformers.GPT2LMHeadModel(gpt), last=True, use_cache=False),
            classes=VOCABULARY,
            **text,
        ),
        "peft lora": Case(lora, **text),
    }


def hugging_face(name, **_):
    """A factory for experiment files."""
    return cases_of_hugging_face()[name].make()
