"""Models that a user might bring, their plain and private steps, and the ratios of both; processor seconds, minima."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import Absent, Peer, in_a_row, interleaved, line

SIZES = (16, 32)
VOCABULARY, CLASSES = 1000, 10


class Encoder(nn.Module):
    """A transformer encoder over tokens with trained positions."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, CLASSES)
        self.register_buffer("places", torch.arange(tokens))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of (B, T) tokens."""
        places = self.places.expand(x.shape[0], -1).contiguous()  # type: ignore[operator]
        out: Tensor = self.last(self.encoder(self.table(x) + self.positions(places)).mean(1))
        return out


def encoder_128() -> nn.Module:
    """64 tokens, width 128, two layers."""
    return Encoder(128, 64)


def encoder_32() -> nn.Module:
    """16 tokens, width 32, two layers."""
    return Encoder(32, 16)


class BertClassifier(nn.Module):
    """BERT of transformers, width 128, two layers, 64 tokens, from its configuration."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.bert = BertForSequenceClassification(
            BertConfig(
                vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=512, max_position_embeddings=64, num_labels=CLASSES, hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of (B, T) tokens."""
        out: Tensor = self.bert(input_ids=tokens).logits
        return out


def bert_lora() -> nn.Module:
    """The same BERT, frozen, with peft's factors of rank 4 beside queries and values; the classifier is trained too."""
    from peft import LoraConfig, get_peft_model

    model = BertClassifier()
    chosen = LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    model.bert = get_peft_model(model.bert, chosen)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "encoder_128": (encoder_128, 64),
    "encoder_32": (encoder_32, 16),
    "bert_lora": (bert_lora, 64),
    "bert": (BertClassifier, 64),
}
"""Name -> factory and tokens of an example."""


def token_batch(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    """Random tokens and labels."""
    torch.manual_seed(size)
    return torch.randint(0, VOCABULARY, (size, tokens)), torch.randint(0, CLASSES, (size,))


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """The processor seconds of one of several calls in a row: other processes do not count."""
    return in_a_row(work, clock=time.process_time)


def plain_step(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """The gradient of a batch's mean loss by torch alone."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return lambda: torch.autograd.grad(functional.cross_entropy(module(x), y), trained)


def own_work(name: str) -> dict[str, Callable[[], float]]:
    """Plain gradients by torch, clipped sums of ours, and those with noise and a step, at every batch size."""
    import numpy as np

    from sightline.data import Kind
    from sightline.models.flat import FlatModel, constants_of, layout_of, make_module
    from sightline.training.dispatch import worker_for
    from sightline.training.dp_sgd_settings import draw_gaussian
    from sightline.training.fast.graph_worker import GraphWorker

    if name.startswith("bert") and not (find_spec("transformers") and find_spec("peft")):
        raise Absent('transformers and peft are not installed; run pip install -e ".[hf]"')
    factory, tokens = MODELS[name]
    first = make_module(factory, seed=0)
    constants = {word: one.clone() for word, one in constants_of(first).items()}
    model = FlatModel(name, (tokens,), CLASSES, Kind.TEXT, layout_of(first), factory, VOCABULARY, {}, constants)
    worker, rng = worker_for(model), np.random.default_rng(0)
    if not isinstance(worker, GraphWorker):
        raise RuntimeError(f"{name} does not run as its graph")
    worker.weights.copy_(model.init(rng))
    work: dict[str, Callable[[], float]] = {}
    for size in SIZES:
        x, y = token_batch(tokens, size)

        def private(x: Tensor = x, y: Tensor = y) -> None:
            worker.clipped_sum(x, y, 1.0)

        def whole(x: Tensor = x, y: Tensor = y) -> None:
            worker.clipped_sum(x, y, 1.0)
            worker.gradient.add_(draw_gaussian(model.parameters, rng=rng)).div_(len(y))
            worker.weights.add_(worker.gradient, alpha=-1e-4)

        work[f"plain {size}"] = timed(plain_step(make_module(factory, seed=0).train(), x, y))
        work[f"private {size}"] = timed(private)
        work[f"step {size}"] = timed(whole)
    return work


def compare_plain(name: str, goal: float, *, repeat: int = 25) -> dict[str, Any]:
    """Clipped sum / plain gradient; the worse of the batch sizes counts. Noise and step are told beside it."""
    torch.set_num_threads(1)
    found = {word: min(seconds) for word, seconds in interleaved(own_work(name), repeat=repeat).items()}
    ratios = {f"batch_{size}": round(found[f"private {size}"] / found[f"plain {size}"], 3) for size in SIZES}
    noisy = {f"with_noise_{size}": round(found[f"step {size}"] / found[f"plain {size}"], 3) for size in SIZES}
    return line(f"own_{name}", max(ratios.values()), goal, at_least=False, **ratios, **noisy)


def compare_opacus(name: str, goal: float, *, repeat: int = 9) -> dict[str, Any]:
    """Opacus' best mode / ours, whole steps with noise; the smaller of the batch sizes' ratios counts."""
    torch.set_num_threads(1)
    modes = ("hooks", "functorch", "ghost")
    peers = {f"{mode} {size}": Peer("pfl", "opacus_own.py", name, mode, str(size)) for mode in modes for size in SIZES}
    work: dict[str, Any] = {word: call for word, call in own_work(name).items() if word.startswith("step")}
    work |= {word: peer.seconds for word, peer in peers.items()}
    found = {word: min(seconds) for word, seconds in interleaved(work, repeat=repeat).items()}
    for peer in peers.values():
        peer.close()
    best = {size: min((found[f"{mode} {size}"], mode) for mode in modes) for size in SIZES}
    ratios = {f"batch_{size}": round(best[size][0] / found[f"step {size}"], 3) for size in SIZES}
    told = [mode for _, mode in best.values()]
    return line(f"opacus_{name}", min(ratios.values()), goal, at_least=True, **ratios, best_modes=told)
