"""Change one place of the source, scopes by the name of a function and the syntax of the code inside it.

Comparing syntax trees instead of text means that reformatting, comments, moving a function to another module, and
changes elsewhere in the function do not disturb an edit.
"""

import ast
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "sightline"
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Slot = tuple[ast.AST, str, int | None]
"""(parent, field, index in a list or None): where a node stands in its tree."""


class BrokenEdit(ValueError):
    """The code that an edit changes is gone or no longer unique."""


@dataclass(frozen=True)
class Edit:
    """Replace the code `old` inside the scope `where` by `new`.

    `where` is the end of a dotted name that no other scope of the package shares: a function (`find_history`), a
    method (`Round.sample`), a class, or a module (`mechanisms.registry`). `old` and `new` are expressions or
    statements; an empty `new` deletes the statements, an empty `old` appends to the scope. A file of C is named by its
    path and searched as text.
    """

    where: str
    old: str
    new: str

    def apply(self, source: Path) -> Path:
        """Change a file under `source` and return its path; raise BrokenEdit unless `old` occurs exactly once."""
        path, text = self.changed_text(source)
        path.write_text(text)
        return path

    def changed_text(self, source: Path) -> tuple[Path, str]:
        """Return (file, its new text); raise BrokenEdit unless `old` occurs exactly once."""
        if self.where.endswith(".c"):
            path = source / PACKAGE / self.where
            self._check_count(path.read_text().count(self.old), path.name)
            return path, path.read_text().replace(self.old, self.new)
        path, name = find_scope(source, self.where)
        tree = ast.parse(path.read_text())
        (parent, field, index), old, new = self.find_code(list_scopes(tree, module_name(source, path)), name)
        if index is None:
            setattr(parent, field, new[0])
        else:
            siblings = getattr(parent, field)
            siblings[index : index + len(old)] = new
            if not siblings:
                siblings.append(ast.Pass())
        return path, ast.unparse(tree) + "\n"

    def check(self, source: Path) -> None:
        """Raise BrokenEdit unless `old` occurs exactly once; faster than to change the text."""
        if self.where.endswith(".c"):
            self.changed_text(source)
        else:
            path, name = find_scope(source, self.where)
            self.find_code(scopes_of(source, path, path.read_text()), name)

    def find_code(self, scopes: list[tuple[str, Scope]], name: str) -> tuple[Slot, list[Any], list[Any]]:
        """Return (slot of the old code, old nodes, new nodes); raise BrokenEdit unless it occurs exactly once."""
        old, new = (ast.parse(textwrap.dedent(code)).body for code in (self.old, self.new))
        if is_expression(old) and is_expression(new):
            old, new = [old[0].value], [new[0].value]
        named = [scope for full, scope in scopes if full == name]
        slots = [slot for scope in named for slot in find_run(scope, old)]
        self._check_count(len(slots), name)
        return slots[0], old, new

    def _check_count(self, count: int, place: str) -> None:
        if count != 1:
            raise BrokenEdit(f"{place}: has this code {count} times, not once; adapt tests/planted/bugs.py: {self.old}")


def is_expression(body: list[ast.stmt]) -> bool:
    """Return whether the code is a single expression."""
    return len(body) == 1 and isinstance(body[0], ast.Expr)


def find_run(scope: Scope, wanted: list[ast.AST]) -> list[Slot]:
    """Return the slot of the first node of every run of nodes that equals `wanted`; the scope's end if it is empty."""
    if not wanted:
        return [(scope, "body", len(scope.body))]
    kind, dumped, slots = type(wanted[0]), [ast.dump(node) for node in wanted], []
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if type(node) is kind:
                    run = [node] if index is None else value[index : index + len(wanted)]
                    if [ast.dump(node) for node in run] == dumped:
                        slots.append((parent, field, index))
    return slots


def find_scope(source: Path, where: str) -> tuple[Path, str]:
    """Return (file, full dotted name) of the scope whose name ends with `where`; raise BrokenEdit unless unique."""
    scopes = {
        (path, full)
        for path, text in read_sources(source)
        if all(f"def {part}" in text or f"class {part}" in text or part in path.as_posix() for part in where.split("."))
        for full, _ in scopes_of(source, path, text)
        if full.endswith(f".{where}")
    }
    if len(scopes) != 1:
        names = ", ".join(sorted(full for _, full in scopes)) or "nothing"
        raise BrokenEdit(f"{where}: names {names}, not one scope; adapt tests/planted/bugs.py")
    return scopes.pop()


@cache
def read_sources(source: Path) -> list[tuple[Path, str]]:
    """Read every module under `source` once."""
    return [(path, path.read_text()) for path in sorted((source / PACKAGE).rglob("*.py"))]


@cache
def scopes_of(source: Path, path: Path, text: str) -> list[tuple[str, Scope]]:
    """Return the scopes of a module, parsed once; they must not be changed."""
    return list_scopes(ast.parse(text), module_name(source, path))


def module_name(source: Path, path: Path) -> str:
    """Return the dotted name of a file under `source`."""
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def list_scopes(node: ast.AST, name: str) -> list[tuple[str, Scope]]:
    """Return (dotted name, node) of a scope and of all scopes inside it."""
    scopes = [(name, node)] if isinstance(node, Scope) else []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Scope):
            scopes += list_scopes(child, f"{name}.{child.name}")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            scopes += list_scopes(child, name)
    return scopes
