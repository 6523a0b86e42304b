"""One test over many cases."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_every(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a check of one case, its first argument, into one test that names every case that fails.

    Use it where cases are rows of a table; fixtures of the check are shared by all of them.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            failures = []
            for case in cases:
                try:
                    check(case, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((case, error))
            if failures:
                lines = [f"{case}: {type(error).__name__}: {error}" for case, error in failures]
                raise AssertionError(f"{len(failures)} cases fail\n" + "\n".join(lines)) from failures[0][1]

        signature = inspect.signature(check)
        test.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        return test

    return decorate
