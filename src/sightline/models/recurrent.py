"""A recurrent classifier of token sequences."""

from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.errors import invalid
from sightline.models.dense import check_positive
from sightline.models.mixing import mark_own


@mark_own
class BiLSTM(nn.Module):
    """Embedding, LSTM in both directions, mean over the words (token 0 is padding), output layer."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch of token sequences (n, tokens)."""
        states, _ = self.lstm(self.embedding(tokens))
        words = (tokens != 0).unsqueeze(2).to(states.dtype)
        logits: Tensor = self.output((states * words).sum(1) / words.sum(1).clamp_min(1.0))
        return logits


def bilstm(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    vocabulary: int,
    embedding: int = 300,
    hidden: int = 256,
) -> nn.Module:
    """Bi-directional LSTM of the Sent140 experiments (embedding 300, 256 each way by default)."""
    if kind is not Kind.TEXT or len(input_shape) != 1:
        invalid("model.name", "bilstm", f"takes token sequences, and the data are {kind.value}s", 'use "mlp" or "cnn"')
    if vocabulary < 1:
        invalid("vocabulary", vocabulary, "the data state how many tokens there are")
    return BiLSTM(vocabulary, check_positive("embedding", embedding), check_positive("hidden", hidden), classes)
