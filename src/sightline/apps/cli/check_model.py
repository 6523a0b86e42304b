"""`sightline check-model`: whether a module treats examples separately, where the proof ends, what privacy slows."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.main import set_option
from sightline.errors import invalid, printable

if TYPE_CHECKING:
    from sightline.models import FlatModel


CHECK_MODEL_EXAMPLES = """
\b
Examples:
  sightline check-model mynet:Net
  sightline check-model mynet:Net --kind image --input-shape 3,32,32 --classes 10
  sightline check-model mynet:build --kind tokens --vocabulary 5000 --set model.width=64
  sightline check-model mynet:Net --experiment examples/quickstart.toml --json

Without --kind and --input-shape, it tries 20 features, images of 1,28,28 and of 3,32,32, and 32 tokens, in this order.
With --experiment and FACTORY, the file gives the data and the factory the model. Exit codes: 0 certified, or trained
one example at a time (the verdict says which); 2 private training refuses the model, or the model fails.
"""
KINDS = {"features": "vector", "image": "image", "tokens": "text"}
DEFAULTS = (("features", (20,)), ("image", (1, 28, 28)), ("image", (3, 32, 32)), ("tokens", (32,)))
"""Inputs that are tried in this order if none are given."""
NOTHING = {"name": "check-model", "rounds": 1}
"""An experiment that only names a model."""
BATCH = 32
"""Number of examples in a timed step."""


@click.command("check-model", epilog=CHECK_MODEL_EXAMPLES)
@click.argument("factory", required=False)
@click.option("--experiment", type=click.Path(path_type=Path), help="Take model, data and settings from this file.")
@set_option("Change a key, e.g. model.width=64.")
@click.option("--kind", type=click.Choice(list(KINDS)), help="Kind of one example.")
@click.option("--input-shape", metavar="N,N,...", help="Shape of one example, e.g. 3,32,32.")
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True, help="Number of classes.")
@click.option("--vocabulary", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check_model_command(
    factory: str | None, experiment: Path | None, overrides: tuple[str, ...], kind: str | None,
    input_shape: str | None, classes: int, vocabulary: int, as_json: bool,
) -> None:  # fmt: skip
    """Say whether a model is certified to treat examples apart, where the proof ends, and what private steps cost.

    FACTORY is "package.module:factory", or the name of a built-in model.
    """
    if factory is None and experiment is None:
        invalid("factory", None, "no model is named", 'give "package.module:factory" or --experiment FILE')
    words = [*overrides] + ([] if factory is None else [f'model.name="{factory}"'])
    if experiment is not None:
        model = model_of_experiment(experiment, words, own=factory is not None)
    else:
        shape = None if input_shape is None else parse_shape(input_shape)
        model = model_of_factory(words, kind, shape, classes, vocabulary)
    answer = check_model(model)
    if as_json:
        click.echo(json.dumps(answer, allow_nan=False))
    else:
        print_answer(answer)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape of one example.

    >>> parse_shape("3,32,32")
    (3, 32, 32)
    """
    words = text.replace("x", ",").split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        invalid("--input-shape", text, "is a list of positive whole numbers", "e.g. --input-shape 3,32,32")
    return tuple(map(int, words))


def model_of_experiment(file: Path, words: list[str], *, own: bool) -> "FlatModel":
    """Return the model that an experiment file trains, or the factory's `own` model for the file's data."""
    from sightline.config import read
    from sightline.data import load_federation
    from sightline.models import build_model, build_task, count_outputs
    from sightline.randomness import Streams

    experiment = read(file, [] if own else words)
    model = read(NOTHING, words).model if own else experiment.model
    data = load_federation(experiment.data, streams=Streams.from_seed(experiment.seed), task=experiment.model.target)
    task = build_task(experiment.model.target, data)
    return build_model(
        model.name, input_shape=data.input_shape, classes=count_outputs(task, data), kind=data.kind,
        vocabulary=data.vocabulary, settings=model.settings, task=task,
    )  # fmt: skip


def model_of_factory(
    words: list[str], kind: str | None, shape: tuple[int, ...] | None, classes: int, vocabulary: int
) -> "FlatModel":
    """Return the model of a factory for the given inputs, or for the first default ones that it accepts."""
    from sightline.config import read
    from sightline.data.federation import Kind
    from sightline.errors import InvalidInput, Refused
    from sightline.models import build_model

    model = read(NOTHING, words).model
    refused: InvalidInput | None = None
    for word, size in likely_inputs(kind, shape):
        try:
            return build_model(
                model.name, input_shape=size, classes=classes, kind=Kind(KINDS[word]), settings=model.settings,
                vocabulary=vocabulary if word == "tokens" else 0,
            )  # fmt: skip
        # A refusal holds for every input: trying other shapes would only hide its reason.
        except Refused:
            raise
        except InvalidInput as error:
            refused = refused or error
    # Unreachable: there is always an input to try.
    if refused is None:
        invalid("--kind", kind, "no model input of this kind")
    fits = kind is not None or shape is not None or "batch of shape" not in str(refused)
    raise refused if fits else InvalidInput(f"{refused}, or give --kind, --input-shape and --classes")


def likely_inputs(kind: str | None, shape: tuple[int, ...] | None) -> list[tuple[str, tuple[int, ...]]]:
    """Return (kind, shape) of the inputs to try; the first that fits is used.

    >>> likely_inputs(None, (3, 32, 32)), likely_inputs("tokens", None)
    ([('image', (3, 32, 32))], [('tokens', (32,))])
    """
    if shape is not None:
        return [(kind or ("image" if len(shape) == 3 else "features"), shape)]
    return [(word, size) for word, size in DEFAULTS if kind in (None, word)]


def check_model(model: "FlatModel") -> dict[str, Any]:
    """Return the verdict on a model, where the proof ended, and the time of plain and private steps."""
    from sightline.models import refuse_mixing_layers
    from sightline.models.certificate import Objection, certificate_of
    from sightline.training import clipping_note

    # Layers such as batch normalisation are refused outright: no clipping bounds an example that changes the others.
    refuse_mixing_layers(model.module())
    certificate = certificate_of(model)
    named = {value: key for key, value in KINDS.items()}
    answer: dict[str, Any] = {
        "model": model.name,
        "verdict": "one at a time" if isinstance(certificate, Objection) else "certified",
        "parameters": model.parameters,
        "kind": named[str(model.kind)],
        "input_shape": list(model.input_shape),
        "classes": model.classes,
    }
    for key, name in (("operation", "operation"), ("source", "source"), ("reason", "reason"), ("way_out", "way_out")):
        answer[key] = getattr(certificate, name) if isinstance(certificate, Objection) else None
    return answer | {"note": clipping_note(model)} | time_steps(model)


def time_steps(model: "FlatModel") -> dict[str, Any]:
    """Return milliseconds of a plain and a private step on one thread of this machine, and their ratio."""
    import numpy as np
    import torch

    from sightline.models import probe_inputs
    from sightline.training.dispatch import worker_for

    worker = worker_for(model)
    worker.weights.copy_(model.init(np.random.default_rng(0)))
    x, y = worker.inputs(probe_inputs(model, BATCH).numpy()), torch.arange(BATCH) % model.classes
    # Dropout draws random numbers while it is timed; the caller's generator stays as it was.
    with on_one_thread(), torch.random.fork_rng(devices=[]):
        plain = least_seconds(lambda: worker.mean_gradient(x, y))
        private = least_seconds(lambda: worker.clipped_sum(x, y, 1.0))
    return {
        "batch": BATCH,
        "plain_ms": round(1000 * plain, 3),
        "private_ms": round(1000 * private, 3),
        "slowdown": round(private / plain, 2),
    }


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Run torch on one thread, as runs train."""
    import torch

    # On a busy machine the threads inside a small step wait for each other, hundreds of times its own length.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def least_seconds(step: Callable[[], None], *, limit: float = 1.0) -> float:
    """Return the least time of several tries, about as many as fit into the limit."""
    step()
    # The first call warms up caches and is not timed; the minimum is the least disturbed by other processes.
    times: list[float] = []
    while len(times) < 3 or (sum(times) < limit and len(times) < 30):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return min(times)


def print_answer(answer: dict[str, Any]) -> None:
    """Print the verdict in lines."""
    certified = answer["verdict"] == "certified"
    shape = " x ".join(map(str, answer["input_shape"]))
    inputs = f"{answer['kind']} of {shape}, {answer['classes']} classes, {answer['parameters']} parameters"
    said = "certified: every example is treated apart from the others, in training and in evaluation"
    alone = "not certified: private steps give the module one example at a time (right, and slower)"
    lines = [("model", f"{answer['model']} ({inputs})"), ("verdict", said if certified else alone)]
    if not certified:
        lines += [("operation", answer["operation"]), ("source", answer["source"] or "-")]
        lines += [("why", answer["reason"]), ("way out", answer["way_out"])]
    elif answer["note"]:
        lines.append(("note", answer["note"]))
    times = f"{answer['slowdown']:g} times a plain step ({answer['private_ms']:g} ms and {answer['plain_ms']:g} ms"
    lines.append(("private step", f"{times}, batches of {answer['batch']}, this machine)"))
    for name, value in lines:
        click.echo(f"{name:<13} {printable(value)}")
