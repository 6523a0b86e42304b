"""Reading and writing experiment files: TOML and `--set` words to an `Experiment` and back."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sightline.config.experiment import Experiment, Model
from sightline.errors import InvalidInput, did_you_mean, invalid, one_line


def read(
    source: Path | str | Mapping[str, Any],
    overrides: Iterable[str] = (),
    on_note: Callable[[str], None] = lambda note: None,
) -> Experiment:
    """Return the experiment of a TOML file or a dictionary, with overrides such as `privacy.epsilon=8`.

    Another `model.name` drops the settings of the model in the file; `on_note` gets a sentence that says so.

    >>> read({"name": "mine", "rounds": 3, "privacy": {"epsilon": 8.0}}, ["rounds=4"]).rounds
    4
    """
    if isinstance(source, Mapping):
        plain = deepcopy(dict(source))
    elif isinstance(source, str | PathLike):
        plain = _read_tables(Path(source))
    else:
        invalid(
            "experiment",
            source,
            f"a {type(source).__name__} is not an experiment",
            "give a TOML file, a dict or an Experiment",
        )
    assignments = list(overrides)
    # Settings that are given beside the name of a model belong to the new model.
    beside = {assignment.partition("=")[0].strip() for assignment in assignments}
    for assignment in assignments:
        _apply_override(plain, assignment, beside, on_note)
    return parse(plain)


def _read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises with one line if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        invalid("file", path, "no such file", "examples/quickstart.toml is a file to start from")
    except (OSError, UnicodeDecodeError) as error:
        invalid("file", path, f"cannot be read ({type(error).__name__})", "give a UTF-8 TOML file")
    except tomllib.TOMLDecodeError as error:
        invalid("file", path, f"is not TOML: {' '.join(str(error).split())}", "strings need quotes")
    except (ValueError, RecursionError) as error:
        invalid(
            "file", path, f"is not an experiment ({type(error).__name__}: nested too deep, or a number is too long)"
        )


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


def _apply_override(plain: dict[str, Any], assignment: str, beside: set[str], on_note: Callable[[str], None]) -> None:
    key, equals, text = assignment.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        invalid("--set", assignment, "must be key=value", "e.g. --set privacy.epsilon=8")
    table = plain
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            invalid("--set", assignment, f"{name} is a value, not a table")
    value = _parse_value(text.strip())
    if names == ["model", "name"] and "model" not in beside and value != table.get("name", Model().name):
        given = {key.split(".")[1] for key in beside if key.startswith("model.")}
        old = [key for key in table if key not in {*Model.model_fields, *given} - ({"init"} - given)]
        for one in old:
            del table[one]
        if old:
            named = ", ".join(f"model.{one}" for one in old)
            on_note(
                f"--set {assignment}: dropped {named}, which belonged to the model {table.get('name', Model().name)}"
            )
    table[names[-1]] = value
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
        elsewhere = find_keys(names[-1])
        way_out = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else did_you_mean(names[-1], known)
        return one_line(".".join(names), mistake["input"], "unknown key", way_out)
    if mistake["type"] == "missing":
        return one_line(".".join(names), "missing", "this key is required")
    value = mistake["input"]
    reason = mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    way_out = did_you_mean(value, _valid_choices(mistake)) if isinstance(value, str) and _valid_choices(mistake) else ""
    return one_line(".".join(names), value, f"should be {reason}" if reason != mistake["msg"] else reason, way_out)


def _valid_choices(mistake: ErrorDetails) -> list[str]:
    expected = str(mistake.get("ctx", {}).get("expected", "")) if mistake["type"] == "literal_error" else ""
    return [choice.strip(" '") for choice in expected.replace(" or ", ",").split(",") if choice.strip(" '")]


def _section_name(names: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = Experiment
    for name in names:
        annotation = section.model_fields[name].annotation
        inside = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        section = next(kind for kind in inside if issubclass(kind, BaseModel))
    return section


def list_keys(section: type[BaseModel] = Experiment, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every declared key of an experiment file by its dotted name, tables left out.

    >>> [key for key in list_keys() if key.startswith("privacy.stop")]
    ['privacy.stop_at_epsilon']
    """
    keys: dict[str, FieldInfo] = {}
    for name, about in section.model_fields.items():
        kinds = (about.annotation, *get_args(about.annotation))
        inside = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        whole = not inside or any(kind not in (*inside, type(None)) for kind in kinds[1:])
        keys |= {f"{prefix}{name}": about} if whole else {}
        keys |= list_keys(inside[0], f"{prefix}{name}.") if inside else {}
    return keys


OTHER_WORDS = {
    "lr": "local.learning_rate",
    "batch": "local.batch_size",
    "bs": "local.batch_size",
    "clip": "privacy.clip_norm",
    "max_grad_norm": "privacy.clip_norm",
    "eps": "privacy.epsilon",
    "sigma": "privacy.noise_multiplier",
    "noise": "privacy.noise_multiplier",
    "topology": "topology.kind",
    "algorithm": "algorithm.name",
    "model": "model.name",
    "data": "data.source",
    "dataset": "data.source",
}
"""What people write for a key."""


def find_keys(name: str) -> list[str]:
    """Return the keys inside tables that end in this name.

    >>> find_keys("epsilon"), find_keys("noise-multiplier")
    (['privacy.epsilon'], ['privacy.noise_multiplier'])
    """
    name = name.replace("-", "_")
    if name in OTHER_WORDS:
        return [OTHER_WORDS[name]]
    return [key for key in list_keys() if key.endswith(f".{name}")]


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
        fields = [line.removeprefix(f"# {name}: ") for line, name in zip(lines, HEAD, strict=False)]
        if len(fields) < len(HEAD) or fields == lines:
            invalid("file", file, f"its first lines must be # {': ..., # '.join(HEAD)}: ...")
        return cls(file, *fields)

    @property
    def system(self) -> str:
        """Return the name of its folder."""
        return self.file.parent.name


def read_reproductions(folder: Path) -> list[Reproduction]:
    """Return all such files in a folder, by system and name. Raises if there are none."""
    result = [Reproduction.read(file) for file in sorted(folder.glob("*/*.toml"))]
    if not result:
        invalid(
            "folder",
            folder,
            "no experiment files of figures or tables in it",
            "run it in a clone of the repository, or name the folder of its experiments",
        )
    return result
