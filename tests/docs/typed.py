"""What `make wheel-test` gives to mypy beside the installed package: a user's script, by its types alone."""

import sightline

run: sightline.Run = sightline.run("examples/quickstart.toml", overrides=["rounds=2"], progress=False)
epsilon: float = run.ledger.epsilon("client-3", "public", delta=1e-3)
history: object = sightline.Run("runs/quickstart").history
bias = sightline.run("few.toml", data=[([[1.0]], [0])], callbacks=[sightline.Callback()]).model().state_dict()["bias"]
scheme: sightline.accounting.Scheme = sightline.accounting.poisson(noise=1.0, rate=0.01, steps=1000).calibrated(
    epsilon=4.0, delta=1e-5
)
wrong: str = run.epsilon  # type: ignore[assignment]
