"""The user's own data: a function that yields one client after the other, and the checks of every own example."""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import FACTORY, Data
from sightline.data.federation import Client, Federation, Kind, Shard, Targets
from sightline.data.partition import draw_subsample
from sightline.data.targets import check_targets, next_tokens
from sightline.errors import SightlineError, invalid
from sightline.randomness import Purpose, Streams

KINDS = {("f", 2): Kind.VECTOR, ("f", 3): Kind.SEQUENCE, ("f", 4): Kind.IMAGE, ("i", 2): Kind.TEXT}
"""Kind of an input array, by the kind of its numbers and its number of axes."""
HIGHEST = 255.0
"""Images of bytes are divided by it."""


def load_own(settings: Data, *, streams: Streams, task: str = "classification") -> Federation:
    """Call `package.module:function` with clients, rng and the options, and check every shard it yields.

    Guarantees: `data.clients` clients, each with a training example; finite inputs of one shape; targets as the task
    needs, labels being whole numbers from 0 to data.classes - 1. Raises with one line for every mistake.
    """
    if settings.partition != "natural":
        reason = "your own function partitions the examples itself"
        invalid("data.partition", settings.partition, reason, 'use partition = "natural"')
    function = import_function(settings.source)
    given = _collect_clients(function, settings, streams.rng(Purpose.SYNTHETIC))
    clients = tuple(checked_client(f"client {number}", client, settings, task) for number, client in enumerate(given))
    return federation_of_own(clients, settings, streams)


def federation_of_own(
    clients: tuple[Client, ...], settings: Data, streams: Streams, test: Shard | None = None
) -> Federation:
    """Return the federation of checked clients: inputs of one kind, the requested sizes, and a test set.

    The common test set is `test` if given, else the union of the clients' test shards.
    """
    owned = [(f"client {number}", one) for number, client in enumerate(clients) for one in (client.train, client.test)]
    parts = [(origin, shard.x, shard.y) for origin, shard in owned]
    if test is not None:
        parts.append(("the test set", test.x, test.y))
    kind, vocabulary = check_alike(settings, parts)
    clients, notes = _keep_fewer(clients, settings, streams)
    union = _union_of_tests(clients, settings) if test is None else test
    common, notes = _fewer_tests(union, settings, streams), (*notes, *class_notes(settings))
    return Federation(settings.source, clients, common, settings.classes, kind, vocabulary, notes)


def import_function(source: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` names; the working folder is searched too."""
    if not FACTORY.fullmatch(source):
        invalid(
            "data.source", source, "your own function must be given as package.module:function", 'e.g. "mydata:clients"'
        )
    module_name, name = source.split(":")
    try:
        with _working_folder():
            function = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        reason = f"cannot import {module_name} ({tell_error(error)})"
        invalid("data.source", source, reason, "run from the folder that holds it, or install it")
    if not callable(function):
        invalid("data.source", source, f"{module_name} has no function {name}", "check the spelling")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    # Appended, not prepended: a file in the working folder must not shadow an installed package.
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _collect_clients(function: Callable[..., Any], settings: Data, rng: np.random.Generator) -> list[Any]:
    try:
        with _working_folder():
            yielded = function(clients=settings.clients, rng=rng, **settings.options)
            # One more than asked for shows a surplus; a generator that never ends is not exhausted.
            given = list(itertools.islice(iter(yielded), settings.clients + 1))
    except SightlineError:
        raise
    except Exception as error:
        reason = f"the function failed ({tell_error(error)})"
        invalid(
            "data.source", settings.source, reason, "it is called as function(clients=..., rng=..., **data.options)"
        )
    if len(given) != settings.clients:
        reason = f"the function returned {'more' if len(given) > settings.clients else len(given)} clients"
        invalid("data.clients", settings.clients, reason, "the two numbers must agree")
    return given


def tell_error(error: Exception) -> str:
    """Return type and first words of an error in the user's code, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def checked_client(origin: str, given: Any, settings: Data, task: str = "classification") -> Client:
    """Return a client made by the user, with arrays checked; raise with one line for every mistake."""
    if isinstance(given, Client):
        arrays: tuple[Any, ...] = (given.train.x, given.train.y, given.test.x, given.test.y)
    elif isinstance(given, tuple | list) and len(given) == 4:
        arrays = tuple(given)
    else:
        reason = f"{origin} is {type(given).__name__}, not (train_x, train_y, test_x, test_y) or a Client"
        invalid("data.source", settings.source, reason)
    train = checked_shard(f"{origin}, train", arrays[0], arrays[1], settings, task)
    if not len(train):
        invalid("data.source", settings.source, f"{origin} has no training example")
    empty = (arrays[3] is None or np.size(arrays[3]) == 0) and np.size(arrays[2]) == 0
    test = train.take(slice(0, 0)) if empty else checked_shard(f"{origin}, test", arrays[2], arrays[3], settings, task)
    return Client(train, test, given.cluster if isinstance(given, Client) else None)


def checked_shard(origin: str, x: Any, y: Any, settings: Data, task: str = "classification") -> Shard:
    """Return the examples of one owner, inputs and targets checked; raise with one line for every mistake."""
    inputs, targets = checked_pair(origin, x, y, settings, task)
    if inputs.dtype == np.uint8:
        inputs = np.divide(inputs, np.float32(HIGHEST), dtype=np.float32)
    return Shard(inputs, targets)


def checked_pair(origin: str, x: Any, y: Any, settings: Data, task: str) -> tuple[NDArray[Any], Targets]:
    """Return inputs and targets as `checked_shard`, but images of bytes as they are, in a quarter of the memory."""
    try:
        inputs = np.asarray(x)
        if y is None and task == "language" and inputs.ndim == 2 and inputs.shape[1] > 1:
            inputs, y = next_tokens(inputs, padding=settings.options.get("padding"))
        given = np.asarray(y)
    except Exception as error:
        invalid("data.source", settings.source, f"{origin}: not arrays ({tell_error(error)})")
    if given.ndim and (inputs.ndim < 1 or len(inputs) != len(given)):
        invalid("data.source", settings.source, f"{origin}: {inputs.shape} inputs for {len(given)} labels")
    targets = check_targets(origin, given, inputs, settings, task)
    return _read_inputs(origin, inputs, settings), targets


def _read_inputs(origin: str, x: NDArray[Any], settings: Data) -> NDArray[Any]:
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    kind = KINDS.get((x.dtype.kind.replace("u", "i"), x.ndim))
    if kind is None:
        reason = f"{origin}: inputs are {x.dtype} {x.shape}"
        floats = "(n, features), (n, steps, features) or (n, channels, height, width)"
        way_out = f"give float {floats}, or whole-number (n, tokens)"
        invalid("data.source", settings.source, reason, way_out)
    if kind is Kind.TEXT:
        return x.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        inputs = x.astype(np.float32, copy=False)
    # Clipping would silently count an example with NaN as zero; without clipping it would spoil the model.
    if not np.isfinite(inputs).all():
        invalid("data.source", settings.source, f"{origin}: inputs contain NaN or infinity", "clean them first")
    return inputs


Part = tuple[str, NDArray[Any], Targets]
"""Whose examples they are, inputs and targets."""


def check_alike(settings: Data, parts: list[Part]) -> tuple[Kind, int]:
    """Return the kind of all inputs and the vocabulary; raise unless inputs and targets have one shape and type."""
    first_origin, first, targets = parts[0]
    for origin, x, y in parts:
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            reason = f"{origin} has inputs {_describe_array(x)}, {first_origin} {_describe_array(first)}"
            invalid("data.source", settings.source, reason, "all inputs must have one shape and type")
        if y.shape[1:] != targets.shape[1:] or y.dtype != targets.dtype:
            reason = f"{origin} has targets {_describe_array(y)}, {first_origin} {_describe_array(targets)}"
            invalid("data.source", settings.source, reason, "all targets must have one shape and type")
    kind = Kind.IMAGE if first.dtype == np.uint8 else KINDS[first.dtype.kind, first.ndim]
    return kind, _check_vocabulary(settings, parts) if kind is Kind.TEXT else 0


def class_notes(settings: Data) -> tuple[str, ...]:
    """Return the note that names the classes, if they have names."""
    names = settings.class_names or ()
    listed = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:20]))
    return (f"classes, declared as public: {listed}{', ...' if len(names) > 20 else ''}",) if names else ()


def _describe_array(x: NDArray[Any]) -> str:
    return f"{x.dtype} {x.shape[1:]}"


def _keep_fewer(
    clients: tuple[Client, ...], settings: Data, streams: Streams
) -> tuple[tuple[Client, ...], tuple[str, ...]]:
    total = sum(len(client.train) for client in clients)
    keep = settings.train_samples
    if keep is None or keep == total:
        return clients, ()
    if not len(clients) <= keep <= total:
        reason = f"{len(clients)} clients have {total} training examples, and each keeps at least one"
        invalid("data.train_samples", keep, reason)
    owner = np.repeat(np.arange(len(clients)), [len(client.train) for client in clients])
    kept = draw_subsample(total, keep=keep, rng=streams.rng(Purpose.SUBSAMPLE), owner=owner)
    starts = np.searchsorted(owner, np.arange(len(clients)))
    fewer = tuple(
        Client(client.train.take(kept[owner[kept] == number] - starts[number]), client.test, client.cluster)
        for number, client in enumerate(clients)
    )
    return fewer, (f"data.train_samples: {keep:,} of {total:,} examples, chosen at random",)


def _union_of_tests(clients: tuple[Client, ...], settings: Data) -> Shard:
    tests = [client.test for client in clients]
    union = Shard(np.concatenate([test.x for test in tests]), np.concatenate([test.y for test in tests]))
    if not len(union):
        invalid(
            "data.source", settings.source, "no client has a test example", "give test examples to at least one client"
        )
    return union


def _fewer_tests(union: Shard, settings: Data, streams: Streams) -> Shard:
    keep = len(union) if settings.test_samples is None else settings.test_samples
    if keep > len(union):
        invalid("data.test_samples", keep, f"the clients have {len(union):,} test examples")
    return union.take(draw_subsample(len(union), keep=keep, rng=streams.rng(Purpose.SUBSAMPLE, round=1)))


def _check_vocabulary(settings: Data, parts: Iterable[Part]) -> int:
    # A vocabulary read off private texts would be a release, so the user must state it.
    vocabulary = settings.options.get("vocabulary")
    if not isinstance(vocabulary, int) or vocabulary < 2:
        reason = "inputs are tokens, and the vocabulary size must not be read off private data"
        invalid("data.options.vocabulary", vocabulary, reason, "give it, e.g. options = {vocabulary = 5000}")
    for origin, x, _ in parts:
        if x.size and (x.min() < 0 or x.max() >= vocabulary):
            invalid("data.options.vocabulary", vocabulary, f"{origin} has tokens outside 0 .. vocabulary - 1")
    return vocabulary
