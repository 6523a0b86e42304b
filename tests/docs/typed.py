"""A user's script that `make wheel-test` type-checks against the installed package."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import sightline

run: sightline.Run = sightline.run("examples/quickstart.toml", overrides=["rounds=2"], progress=False)
epsilon: float = run.ledger.epsilon("client-3", "public", delta=1e-3)
history: object = sightline.Run("runs/quickstart").history
bias = sightline.run("few.toml", data=[([[1.0]], [0])], callbacks=[sightline.Callback()]).model().state_dict()["bias"]
scheme: sightline.accounting.Scheme = sightline.accounting.poisson(noise=1.0, rate=0.01, steps=1000).calibrated(
    epsilon=4.0, delta=1e-5
)
model = torch.nn.Linear(2, 2)
x, y = torch.ones(8, 2), torch.zeros(8, dtype=torch.long)
data = TensorDataset(x, y)
with sightline.make_private(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4), noise_multiplier=1.0, delta=1e-3
) as private:
    spent: float = private.epsilon()
    summed: dict[str, torch.Tensor] = sightline.clipped_gradient(model, None, x, y, clip_norm=1.0)
wrong: str = run.epsilon  # type: ignore[assignment]
