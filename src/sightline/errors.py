"""The errors a user can meet; each is one line: what was given, the rule it breaks, what to do."""

import unicodedata
from difflib import get_close_matches
from typing import Any, NoReturn


class SightlineError(Exception):
    """Base of every error that Sightline raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class InvalidInput(SightlineError):
    """The input cannot be used as given: `name=value: reason; way out`."""

    exit_code = 2


class Refused(InvalidInput):
    """The input could be run, but the stated guarantee would not hold."""


class BudgetExhausted(SightlineError):
    """The next round would spend more than the privacy budget allows."""

    exit_code = 3


def invalid(name: str, value: Any, reason: str, way_out: str = "") -> NoReturn:
    """Raise `InvalidInput` with one line for a bad value.

    >>> invalid("rate", 1.5, "a probability lies in (0, 1]", "give 0.5 for every second client")
    Traceback (most recent call last):
    ...
    sightline.errors.InvalidInput: rate=1.5: a probability lies in (0, 1]; give 0.5 for every second client
    """
    raise InvalidInput(one_line(name, value, reason, way_out))


def refuse(name: str, value: Any, reason: str, way_out: str) -> NoReturn:
    """Raise `Refused` with one line for a setting whose guarantee would not hold."""
    raise Refused(one_line(name, value, reason, way_out))


def one_line(name: str, value: Any, reason: str, way_out: str = "") -> str:
    """Return `name=value: reason; way out`, on one line whatever the value holds."""
    shown = printable(_plain_value(value)[:10_000], most=80)
    return printable(f"{name}={shown}: {reason}") + (f"; {printable(way_out)}" if way_out else "")


# Character categories that a terminal obeys, or that change what is seen without being visible. File content reaches
# error messages, so they must not reach the terminal.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str, *, most: int = 0, keep: bool = False) -> str:
    """Return the text on one line, at most `most` characters, with control and invisible characters escaped.

    With `keep`, spaces stay as they are.

    >>> printable("red \\x1b[31m and\\n backwards \\u202e")
    'red \\\\x1b[31m and backwards \\\\u202e'
    """
    kept = text if keep else " ".join(text.split())
    shown = "".join(
        _spell_character(character) if unicodedata.category(character) in HIDDEN else character for character in kept
    )
    return shown[: most - 3] + "..." if most and len(shown) > most else shown


def _spell_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _plain_value(value: Any) -> str:
    try:
        # Huge integers raise ValueError (Python's digit limit), deeply nested containers RecursionError.
        return str(value)
    except (ValueError, RecursionError):
        return f"(a {type(value).__name__} too long to print)"


def did_you_mean(name: str, known: list[str]) -> str:
    """Return a suggestion for a mistyped name: the nearest known one, or all of them.

    >>> did_you_mean("fedavgg", ["fedavg", "local"])
    'did you mean "fedavg"?'
    >>> did_you_mean("zzz", ["fedavg", "local"])
    'known: fedavg, local'
    """
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else "known: " + ", ".join(known)
