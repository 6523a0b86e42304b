"""Models of other libraries as modules from a batch to logits."""

from typing import Any

from torch import Tensor, nn


class TokenLogits(nn.Module):
    """A model of Hugging Face's transformers or peft as a module from tokens (B, T) to logits.

    Such models are called by name and return objects; this one calls `model(input_ids=tokens, **settings)` and returns
    the object's `logits`, with `last` only those of the last token (a language model that predicts the next one).
    Build the model from its configuration inside your factory; nothing is downloaded. What it trains is what
    `requires_grad` says: peft's LoRA freezes the rest, which is then neither noised nor sent.

        def factory(vocabulary, classes):
            config = BertConfig(vocab_size=vocabulary, num_labels=classes, hidden_size=128, num_hidden_layers=2)
            return TokenLogits(BertForSequenceClassification(config))
    """

    def __init__(self, model: nn.Module, *, last: bool = False, **settings: Any) -> None:
        super().__init__()
        self.model, self.last, self.settings = model, last, settings

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of a batch of tokens."""
        logits: Tensor = self.model(input_ids=tokens, **self.settings).logits
        return logits[:, -1] if self.last else logits
