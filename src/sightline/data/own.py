"""The user's own data: a Python function that yields one client's shards after the other."""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import FACTORY, Data
from sightline.data.federation import Client, Federation, Kind, Shard
from sightline.data.partition import draw_subsample
from sightline.data.targets import check_targets, next_tokens
from sightline.errors import SightlineError, invalid
from sightline.randomness import Purpose, Streams

KINDS = {("f", 2): Kind.VECTOR, ("f", 3): Kind.SEQUENCE, ("f", 4): Kind.IMAGE, ("i", 2): Kind.TEXT}
"""What an array of inputs is, by the kind of its numbers and its number of axes."""


def load_own(settings: Data, *, streams: Streams, task: str = "classification") -> Federation:
    """Call `package.module:function` with clients, rng and the options, and check every shard it yields.

    Guarantees: `data.clients` clients, each with a training example; inputs of one shape and finite; targets as the
    task has them, labels being whole numbers from 0 to data.classes - 1. Every mistake is one line.
    """
    if settings.partition != "natural":
        law = "your own function deals the examples itself"
        invalid("data.partition", settings.partition, law, 'use partition = "natural"')
    function = import_function(settings.source)
    given = _collect_clients(function, settings, streams.rng(Purpose.SYNTHETIC))
    clients = tuple(checked_client(f"client {number}", client, settings, task) for number, client in enumerate(given))
    return federation_of_own(clients, settings, streams)


def federation_of_own(
    clients: tuple[Client, ...], settings: Data, streams: Streams, test: Shard | None = None
) -> Federation:
    """The federation of checked clients: inputs of one kind, as many examples as asked for, and a test set.

    The common test set is `test` where one is given, else the union of the clients' test shards.
    """
    kind = _same_kind(settings, clients, test)
    clients, notes = _keep_fewer(clients, settings, streams)
    union = _union_of_tests(clients, settings) if test is None else test
    common = _fewer_tests(union, settings, streams)
    vocabulary = _check_vocabulary(settings, clients, union) if kind is Kind.TEXT else 0
    return Federation(settings.source, clients, common, settings.classes, kind, vocabulary, notes)


def import_function(source: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; modules in the working folder are found too."""
    if not FACTORY.fullmatch(source):
        invalid("data.source", source, "your own function is named package.module:function", 'e.g. "mydata:clients"')
    module_name, name = source.split(":")
    try:
        with _working_folder():
            function = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        law = f"cannot import {module_name} ({tell_error(error)})"
        invalid("data.source", source, law, "run from the folder that holds it, or install it")
    if not callable(function):
        invalid("data.source", source, f"{module_name} has no function {name}", "check the spelling")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
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
            given = list(itertools.islice(iter(yielded), settings.clients + 1))
    except SightlineError:
        raise
    except Exception as error:
        law = f"the function failed ({tell_error(error)})"
        invalid("data.source", settings.source, law, "it is called as function(clients=..., rng=..., **data.options)")
    if len(given) != settings.clients:
        law = f"the function yields {'more' if len(given) > settings.clients else len(given)} clients"
        invalid("data.clients", settings.clients, law, "let both agree")
    return given


def tell_error(error: Exception) -> str:
    """The type and first words of an error in the user's code, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def checked_client(who: str, given: Any, settings: Data, task: str = "classification") -> Client:
    """One client of the user's own making, its arrays checked; every mistake is one line."""
    if isinstance(given, Client):
        arrays: tuple[Any, ...] = (given.train.x, given.train.y, given.test.x, given.test.y)
    elif isinstance(given, tuple | list) and len(given) == 4:
        arrays = tuple(given)
    else:
        law = f"{who} is {type(given).__name__}, not (train_x, train_y, test_x, test_y) or a Client"
        invalid("data.source", settings.source, law)
    train = checked_shard(f"{who}, train", arrays[0], arrays[1], settings, task)
    if not len(train):
        invalid("data.source", settings.source, f"{who} has no training example")
    empty = (arrays[3] is None or np.size(arrays[3]) == 0) and np.size(arrays[2]) == 0
    test = train.take(slice(0, 0)) if empty else checked_shard(f"{who}, test", arrays[2], arrays[3], settings, task)
    return Client(train, test, given.cluster if isinstance(given, Client) else None)


def checked_shard(who: str, x: Any, y: Any, settings: Data, task: str = "classification") -> Shard:
    """The examples of one owner, inputs and targets checked; every mistake is one line."""
    try:
        inputs = np.asarray(x)
        if y is None and task == "language" and inputs.ndim == 2 and inputs.shape[1] > 1:
            inputs, y = next_tokens(inputs)
        given = np.asarray(y)
    except Exception as error:
        invalid("data.source", settings.source, f"{who}: not arrays ({tell_error(error)})")
    if given.ndim and (inputs.ndim < 1 or len(inputs) != len(given)):
        invalid("data.source", settings.source, f"{who}: {inputs.shape} inputs for {len(given)} labels")
    targets = check_targets(who, given, inputs, settings, task)
    return Shard(_read_inputs(who, inputs, settings), targets)


def _read_inputs(who: str, x: NDArray[Any], settings: Data) -> NDArray[np.float32] | NDArray[np.int64]:
    kind = KINDS.get((x.dtype.kind.replace("u", "i"), x.ndim))
    if kind is None:
        law = f"{who}: inputs are {x.dtype} {x.shape}"
        floats = "(n, features), (n, steps, features) or (n, channels, height, width)"
        way_out = f"give float {floats}, or whole-number (n, tokens)"
        invalid("data.source", settings.source, law, way_out)
    if kind is Kind.TEXT:
        return x.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        inputs = x.astype(np.float32, copy=False)
    if not np.isfinite(inputs).all():
        invalid("data.source", settings.source, f"{who}: inputs hold NaN or infinity", "clean them first")
    return inputs


def _same_kind(settings: Data, clients: tuple[Client, ...], test: Shard | None = None) -> Kind:
    first, targets = clients[0].train.x, clients[0].train.y
    owned = [(f"client {number}", one) for number, client in enumerate(clients) for one in (client.train, client.test)]
    for who, shard in owned if test is None else [*owned, ("the test set", test)]:
        if shard.x.shape[1:] != first.shape[1:] or shard.x.dtype != first.dtype:
            law = f"{who} has inputs {_describe_array(shard.x)}, client 0 {_describe_array(first)}"
            invalid("data.source", settings.source, law, "all inputs have one shape and type")
        if shard.y.shape[1:] != targets.shape[1:] or shard.y.dtype != targets.dtype:
            law = f"{who} has targets {_describe_array(shard.y)}, client 0 {_describe_array(targets)}"
            invalid("data.source", settings.source, law, "all targets have one shape and type")
    return KINDS[first.dtype.kind, first.ndim]


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
        law = f"{len(clients)} clients have {total} training examples and keep one each"
        invalid("data.train_samples", keep, law)
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
        invalid("data.source", settings.source, "no client has a test example", "give at least one client some")
    return union


def _fewer_tests(union: Shard, settings: Data, streams: Streams) -> Shard:
    keep = len(union) if settings.test_samples is None else settings.test_samples
    if keep > len(union):
        invalid("data.test_samples", keep, f"the clients have {len(union):,} test examples")
    return union.take(draw_subsample(len(union), keep=keep, rng=streams.rng(Purpose.SUBSAMPLE, round=1)))


def _check_vocabulary(settings: Data, clients: tuple[Client, ...], tests: Shard) -> int:
    vocabulary = settings.options.get("vocabulary")
    if not isinstance(vocabulary, int) or vocabulary < 2:
        law = "inputs are tokens, and their number must not be learned from private data"
        invalid("data.options.vocabulary", vocabulary, law, "give it, e.g. options = {vocabulary = 5000}")
    owned = [(f"client {number}", one) for number, client in enumerate(clients) for one in (client.train, client.test)]
    for who, shard in [*owned, ("the test set", tests)]:
        if shard.x.size and (shard.x.min() < 0 or shard.x.max() >= vocabulary):
            invalid("data.options.vocabulary", vocabulary, f"{who} has tokens outside 0 .. vocabulary - 1")
    return vocabulary
