"""Reading and writing experiment files: TOML and `--set` words to an `Experiment` and back."""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sightline.config.experiment import Experiment
from sightline.errors import InvalidInput, did_you_mean, invalid, one_line


def read(source: Path | str | Mapping[str, Any], overrides: Iterable[str] = ()) -> Experiment:
    """Return the experiment of a TOML file or a dictionary, with overrides such as `privacy.epsilon=8`.

    >>> read({"name": "mine", "rounds": 3, "privacy": {"epsilon": 8.0}}, ["rounds=4"]).rounds
    4
    """
    if isinstance(source, Mapping):
        plain = deepcopy(dict(source))
    elif isinstance(source, str | PathLike):
        plain = _read_tables(Path(source))
    else:
        invalid("experiment", source, f"a {type(source).__name__} is none", "give a TOML file, a dict or an Experiment")
    for word in overrides:
        _apply_override(plain, word)
    return parse(plain)


def _read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises with one line if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        invalid("file", path, "no such file", "examples/quickstart.toml is one to start from")
    except (OSError, UnicodeDecodeError) as error:
        invalid("file", path, f"cannot be read ({type(error).__name__})", "give a UTF-8 TOML file")
    except tomllib.TOMLDecodeError as error:
        invalid("file", path, f"is not TOML: {' '.join(str(error).split())}", "strings need quotes")
    except (ValueError, RecursionError) as error:
        invalid("file", path, f"is not an experiment ({type(error).__name__}: nested too deep, or too long a number)")


def parse(plain: dict[str, Any]) -> Experiment:
    """Return the experiment of a plain dictionary. Raises `InvalidInput` with one line for the first mistake."""
    try:
        return Experiment.model_validate(plain)
    except ValidationError as error:
        # A mistyped key also reports a missing one; the mistyped key is the one to show first.
        mistakes = sorted(error.errors(include_url=False), key=lambda mistake: mistake["type"] == "missing")
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        raise InvalidInput(_explain_mistake(mistakes[0]) + more) from None


def to_toml(experiment: Experiment) -> str:
    """Return the resolved file: every key with its value, so that it can be run again unchanged."""
    return tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))


def _apply_override(plain: dict[str, Any], word: str) -> None:
    key, equals, text = word.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        invalid("--set", word, "is not key=value", "e.g. --set privacy.epsilon=8")
    table = plain
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            invalid("--set", word, f"{name} is a value, not a table")
    table[names[-1]] = _parse_value(text.strip())
    for rival in _RIVALS.get(key.strip(), ()):
        table.pop(rival, None)


# Setting one of these keys on the command line replaces the rival keys that the file gave.
_RIVALS = {
    "privacy.epsilon": ("noise_multiplier", "noise_std", "noise_rate"),
    "privacy.noise_multiplier": ("epsilon",),
    "privacy.noise_std": ("epsilon",),
    "privacy.noise_rate": ("epsilon",),
    "local.steps": ("epochs",),
    "local.epochs": ("steps",),
}


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _explain_mistake(mistake: ErrorDetails) -> str:
    names = [str(part) for part in mistake["loc"] if not str(part).startswith("function-")]
    if mistake["type"] == "extra_forbidden":
        known = sorted(_section_name(names[:-1]).model_fields)
        return one_line(".".join(names), mistake["input"], "unknown key", did_you_mean(names[-1], known))
    if mistake["type"] == "missing":
        return one_line(".".join(names), "missing", "this key is required")
    value = mistake["input"]
    law = mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    way_out = did_you_mean(value, _valid_choices(mistake)) if isinstance(value, str) and _valid_choices(mistake) else ""
    return one_line(".".join(names), value, f"should be {law}" if law != mistake["msg"] else law, way_out)


def _valid_choices(mistake: ErrorDetails) -> list[str]:
    expected = str(mistake.get("ctx", {}).get("expected", "")) if mistake["type"] == "literal_error" else ""
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",") if word.strip(" '")]


def _section_name(names: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = Experiment
    for name in names:
        annotation = section.model_fields[name].annotation
        inside = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        section = next(kind for kind in inside if issubclass(kind, BaseModel))
    return section


HEAD = ("Reproduces", "Expect", "Takes", "Whole")


@dataclass(frozen=True)
class Reproduction:
    """One experiment file that reproduces a figure or a table."""

    file: Path
    reproduces: str
    expect: str
    takes: str
    whole: str
    """The command that makes the whole figure or table; the file itself is one cell of it."""

    @classmethod
    def read(cls, file: Path) -> "Reproduction":
        """Return the reproduction described by the first lines of an experiment file. Raises if they are missing."""
        lines = file.read_text(encoding="utf-8").splitlines()[: len(HEAD)]
        words = [line.removeprefix(f"# {name}: ") for line, name in zip(lines, HEAD, strict=False)]
        if len(words) < len(HEAD) or words == lines:
            invalid("file", file, f"its first lines are not # {': ..., # '.join(HEAD)}: ...")
        return cls(file, *words)

    @property
    def system(self) -> str:
        """Return the name of its folder."""
        return self.file.parent.name


def read_reproductions(folder: Path) -> list[Reproduction]:
    """Return all such files in a folder, by system and name. Raises if there are none."""
    found = [Reproduction.read(file) for file in sorted(folder.glob("*/*.toml"))]
    if not found:
        invalid(
            "folder",
            folder,
            "holds no experiment files of figures and tables",
            "run it in a clone, or name its experiments",
        )
    return found
