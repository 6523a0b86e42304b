"""Steps of clients on a device that holds no numbers, as they are and with planted mistakes; a process of its own.

Torch knows for every tensor of a `FakeTensorMode` where it would be, and nothing of what is in it: a tensor that was not
moved raises, and so does reading a number inside a step.
"""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
)
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import Adam, LocalTerms, LocalWork, clipping, gradients
from sightline.training.clipping import Balls, Passes
from sightline.training.dp_sgd_settings import DPSGDSettings, ViewKind, Views
from sightline.training.gradients import GradientWorker, one_by_one, vectorised_gradients
from sightline.training.local_training import descend_client, descend_privately
from sightline.training.local_work import Descent

EXAMPLES = 4
MISTAKES = ("inputs", "labels", "noise", "factors", "terms", "gradient", "number")
MODELS = {
    "mlp": ((1, 6, 6), Kind.IMAGE, {"hidden": [5]}),
    "cnn": ((1, 8, 8), Kind.IMAGE, {}),
    "bilstm": ((5,), Kind.TEXT, {}),
}


class OneSize(Passes):
    """Passes of one size, without a trial: a fake tensor has no bits to compare."""

    def __init__(self, size):
        self.sizes = (size,)

    def is_alike(self, size):
        return size in self.sizes


def plant(mistake):
    """Forget one move, or ask for one number, as long as the result is open."""
    place, factors, begin, clip, make = (
        GradientWorker.place_tensor, clipping.clip_factors, Descent.begin, gradients.clipped_rows,
        GradientWorker.__init__,
    )  # fmt: skip

    def forget(is_meant):
        return patch.object(
            GradientWorker, "place_tensor", lambda worker, t: t if is_meant(worker, t) else place(worker, t)
        )

    def ask(rows, clip_norm):
        return clip(rows if bool(torch.isfinite(rows).all()) else torch.nan_to_num(rows), clip_norm)

    def begin_here(work, terms, start, clients):
        return replace(begin(work, terms, start, clients), linear=terms.linear)

    def drop_gradient(worker, model):
        make(worker, model)
        worker.gradient = torch.zeros(model.parameters)

    return {
        "inputs": forget(lambda worker, t: tuple(t.shape[1:]) == worker.model.input_shape),
        "labels": forget(lambda worker, t: t.dtype == torch.int64 and t.shape == (EXAMPLES,)),
        "noise": forget(lambda worker, t: t.shape == (worker.model.parameters,)),
        "factors": patch.object(clipping, "clip_factors", lambda norms, clip_norm: factors(norms, clip_norm).cpu()),
        "terms": patch.object(Descent, "begin", begin_here),
        "gradient": patch.object(GradientWorker, "__init__", drop_gradient),
        "number": patch.object(gradients, "clipped_rows", ask),
        "none": nullcontext(),
    }[mistake]


def take_steps(model, rows, rng):
    """All kinds of steps of one client, as far as the vector that they end at."""
    worker = GradientWorker(model)
    worker.rows = rows
    worker.passes = {views: OneSize(8) for views in (1, 2)}  # whether rows are alike is asked once, not between steps
    text = model.kind is Kind.TEXT
    x = rng.integers(5, size=(EXAMPLES, *model.input_shape)) if text else rng.random((EXAMPLES, *model.input_shape))
    shard = Shard(x.astype(np.int64 if text else np.float32), rng.integers(3, size=EXAMPLES))
    some = torch.ones(model.parameters)
    terms = LocalTerms(0.1, anchor=some, linear=some, mask=some)
    works = (
        LocalWork(0.1, momentum=0.9, batch_size=2, step_norm=1.0),
        LocalWork(0.1, weight_decay=0.1),
        LocalWork(0.1, batch_size=2, adam=Adam(decoupled=True), weight_decay=0.1),
    )
    views = [None] if text else [None, Views(2, ViewKind.SHIFT)]
    for work in works:
        worker.weights.copy_(some)
        descend_client(worker, Descent.begin(work, terms, worker.weights, 0), shard, 1, rng)
    for rate, seen in product((0.5, 1.0), views):
        how = DPSGDSettings(
            1.0, [0.5], [rate], [1], [3.0], [rng], [rng], views=seen, view_rngs=None if seen is None else [rng]
        )
        descend_privately(worker, Descent.begin(works[0], terms, worker.weights, 0), shard, how, 0)
    balls = Balls((1.0, 2.0), {slot.name: index % 2 for index, slot in enumerate(model.layout)})
    worker.clipped_sum(worker.inputs(shard.x), worker.place_tensor(torch.from_numpy(shard.y)), balls)
    for vector in (worker.weights, worker.gradient):
        assert isinstance(vector, FakeTensor)
        assert vector.device.type == "gpu"
    assert worker.state is not None  # so that its watch has been at work, without a question


def make_there(worker):
    """The worker's module, made on its device."""
    with torch.device(worker.device):
        worker.module = worker.model.module()


def try_model(name):
    """Steps of one model on the device."""
    shape, kind, settings = MODELS[name]
    model = build_model(name, input_shape=shape, classes=3, kind=kind, vocabulary=5, settings=settings)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        read = torch.from_numpy
        with patch.object(torch, "from_numpy", lambda array: mode.from_tensor(read(array))):
            rows = one_by_one if kind is Kind.TEXT else vectorised_gradients
            take_steps(replace(model, device=torch.device("gpu")), rows, np.random.default_rng(0))


def main():
    """Print what happens to every model as it is, and to one with each mistake."""
    _setup_privateuseone_for_python_backend("gpu")
    gradients.warm_up = lambda module, model: False  # compares states of real generators, once, before any step
    GradientWorker.move_module = make_there  # a module of such tensors cannot be moved
    for mistake, name in [("none", name) for name in MODELS] + [(mistake, "mlp") for mistake in MISTAKES]:
        try:
            with plant(mistake):
                try_model(name)
            found = "passes"
        except (FakeTensorDeviceMismatchError, DataDependentOutputException) as error:
            found = type(error).__name__
        print(mistake, name, found)


if __name__ == "__main__":
    main()
