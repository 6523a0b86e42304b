"""The plan: `names/*.txt` and `modules.toml`, read and checked against the source."""

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.rename.source import PACKAGE, Project

HERE = Path(__file__).parent


@dataclass(frozen=True)
class MethodRename:
    """One method of one class or of several: `classes` are full names, as they are once classes are renamed."""

    classes: tuple[tuple[str, str], ...]
    old: str
    new: str


@dataclass(frozen=True)
class Move:
    """One target module and the modules whose text it is made of, in that order."""

    target: str
    sources: tuple[str, ...]
    doc: str | None


@dataclass(frozen=True)
class Preparation:
    """A change of one file's text that a step needs before it begins."""

    step: str
    file: str
    pattern: str
    text: str


@dataclass(frozen=True)
class Apps:
    """The packages that join one package, and that package's docstring."""

    package: str
    members: tuple[str, ...]
    doc: str


@dataclass(frozen=True)
class Plan:
    """Everything that is to be renamed and moved."""

    names: dict[tuple[str, str], str]
    methods: tuple[MethodRename, ...]
    moves: tuple[Move, ...]
    carried: tuple[tuple[str, str], ...]
    apps: Apps
    preparations: tuple[Preparation, ...]


def read_plan(folder: Path = HERE) -> Plan:
    """Read the plan in a folder."""
    names: dict[tuple[str, str], str] = {}
    methods: list[MethodRename] = []
    for path in sorted((folder / "names").glob("*.txt")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "M" and len(words) == 4:
                methods.append(MethodRename(_read_classes(words[1]), words[2], words[3]))
            elif len(words) == 3:
                names[f"{PACKAGE}.{words[0]}", words[1]] = words[2]
            else:
                raise ValueError(f"{path.name}:{number}: neither `module old new` nor `M classes old new`: {line}")
    tables = tomllib.loads((folder / "modules.toml").read_text())
    moves = tuple(
        Move(f"{PACKAGE}.{m['to']}", tuple(f"{PACKAGE}.{source}" for source in m["from"]), m.get("doc"))
        for m in tables["module"]
    )
    apps = tables["apps"]
    return Plan(
        names,
        tuple(methods),
        moves,
        tuple((entry["file"], entry["to"]) for entry in tables["carry"]),
        Apps(apps["package"], tuple(apps["members"]), apps["doc"]),
        tuple(Preparation(**entry) for entry in tables["prepare"]),
    )


def _read_classes(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [entry.split(":") for entry in text.split(",")]
    return tuple((f"{PACKAGE}.{module}", name) for module, name in pairs)


def prepare_texts(root: Path, plan: Plan, step: str) -> dict[Path, str]:
    """Give the texts of the files that a step wants changed before it begins."""
    texts: dict[Path, str] = {}
    for change in plan.preparations:
        path = root / change.file
        if change.step == step and path.is_file():
            before = texts.get(path, path.read_text())
            texts[path] = re.sub(change.pattern, change.text, before, flags=re.MULTILINE)
    return texts


def check_names(project: Project, plan: Plan) -> list[str]:
    """List the module-level names of the plan that the source does not define."""
    problems = []
    for module, old in plan.names:
        if module not in project.files:
            problems.append(f"{module}: no such module ({old})")
        elif old not in project.bindings[module]:
            problems.append(f"{module}: no name {old}")
    return problems


def check_methods(project: Project, plan: Plan) -> list[str]:
    """List the methods of the plan that the source does not define; one of several classes may lack its own."""
    problems = []
    former = {(module, new): old for (module, old), new in plan.names.items()}
    for rename in plan.methods:
        for module, name in rename.classes:
            if module not in project.files:
                problems.append(f"{module}: no such module ({name}.{rename.old})")
                continue
            classes = {n.name: n for n in project.files[module].tree.body if isinstance(n, ast.ClassDef)}
            found = classes.get(name) or classes.get(former.get((module, name), ""))
            if found is None:
                problems.append(f"{module}: no class {name}")
            elif len(rename.classes) == 1 and rename.old not in _list_members(found):
                problems.append(f"{module}: no method {name}.{rename.old}")
    return problems


def check_moves(project: Project, plan: Plan) -> list[str]:
    """List the modules that are to move and do not exist."""
    return [
        f"{move.target}: no such module {source}"
        for move in plan.moves
        for source in move.sources
        if source not in project.files
    ]


def _list_members(node: ast.ClassDef) -> set[str]:
    members = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            members.update(n.id for n in ast.walk(statement) if isinstance(n, ast.Name))
    return members
