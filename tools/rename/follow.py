"""What types do not reach: tests follow renamed methods by name where that is unambiguous, doctests follow both."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tools.rename.plan import Plan
from tools.rename.source import FUNCTIONS, PACKAGE, Project, SourceFile

FOLDERS = ("tests", "benchmarks", "experiments")
BY_NAME = ("setattr", "getattr", "hasattr", "delattr")


def follow_methods(project: Project, plan: Plan) -> tuple[list[str], list[str]]:
    """Add edits outside the source, once its methods are renamed; give names for the eye: ambiguous, doubtful."""
    news = group_methods(plan)
    taken = find_members(project)
    safe = {old: min(new) for old, new in news.items() if len(new) == 1 and old not in taken}
    places: dict[str, list[str]] = defaultdict(list)
    doubts: dict[str, list[str]] = defaultdict(list)
    for file in project.files.values():
        relative = file.path.relative_to(project.root)
        if relative.parts[0] not in FOLDERS:
            continue
        follower = MethodFollower(file, safe)
        follower.visit(file.tree)
        for name, line in follower.seen:
            if name in news and name not in safe:
                places[name].append(f"{relative}:{line}")
        for name, line in follower.own:
            if name in safe:
                doubts[name].append(f"{relative}:{line}")
    return (
        [f"{n} -> {sorted(news[n])}: {len(p)}: {' '.join(p[:6])}" for n, p in _sort_by_count(places)],
        [f"{n} -> {safe[n]}: {len(p)}: {' '.join(p[:6])}" for n, p in _sort_by_count(doubts)],
    )


def _sort_by_count(places: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    return sorted(places.items(), key=lambda pair: len(pair[1]))


def group_methods(plan: Plan) -> dict[str, set[str]]:
    """Give the new names of each old method name."""
    news: dict[str, set[str]] = defaultdict(set)
    for rename in plan.methods:
        news[rename.old].add(rename.new)
    return news


def find_members(project: Project) -> set[str]:
    """Give every name that the source still uses or defines as a member of something."""
    found = set()
    for file in project.files.values():
        if project.source not in file.path.parents:
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ClassDef):
                found.update(b.name for b in node.body if isinstance(b, FUNCTIONS))
                fields = [b.target for b in node.body if isinstance(b, ast.AnnAssign)]
                found.update(target.id for target in fields if isinstance(target, ast.Name))
    return found


class MethodFollower(ast.NodeVisitor):
    """Renames members in one file by their names alone, and notes those that the file has of its own."""

    def __init__(self, file: SourceFile, safe: dict[str, str]) -> None:
        """Take a file and the names that can only mean a renamed method."""
        self.file = file
        self.safe = safe
        self.seen: list[tuple[str, int]] = []
        self.own: list[tuple[str, int]] = []
        imports = [a for n in ast.walk(file.tree) if isinstance(n, ast.Import) for a in n.names]
        self.foreign = {a.asname or a.name for a in imports if not a.name.startswith(PACKAGE)}

    def follow(self, name: str, line: int, column: int) -> None:
        """Rename if the name is safe; take note of it in any case."""
        self.seen.append((name, line))
        if name in self.safe:
            self.file.add_edit(line, column, name, self.safe[name])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Follow `object.member`, unless the object is a module of another library."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self.foreign):
            self.follow(node.attr, node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr.encode()))
            if isinstance(node.ctx, ast.Store):
                self.own.append((node.attr, node.lineno))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Follow `setattr(object, "member", ...)` and its like."""
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in BY_NAME and len(node.args) >= 2:
            text = node.args[1]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                self.follow(text.value, text.lineno, text.col_offset + 1)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Follow methods of stand-ins; note fields, which keep their names while their uses do not."""
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                self.seen.append((member.name, member.lineno))
                if member.name in self.safe:
                    self.file.rename_definition(member, member.name, self.safe[member.name])
            elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                self.own.append((member.target.id, member.lineno))
        self.generic_visit(node)


def follow_doctests(project: Project, plan: Plan) -> dict[Path, str]:
    """Give the new texts of source files whose examples (`>>>`) use renamed names or methods."""
    texts = {}
    for file in project.files.values():
        if project.source in file.path.parents:
            text = DoctestFollower(file.name, plan).follow_text("".join(file.apply_edits()))
            if text != file.text:
                texts[file.path] = text
    return texts


class DoctestFollower:
    """Renames in the examples of one module."""

    def __init__(self, module: str, plan: Plan) -> None:
        """Collect what is renamed in the module, in those that it joins, and in one place only of all."""
        self.own: dict[str, str] = {}
        joined = next((move.sources for move in plan.moves if module in move.sources), ())
        for source in (*joined, module):
            self.own.update({old: new for (where, old), new in plan.names.items() if where == source})
        self.anywhere: dict[str, set[str]] = defaultdict(set)
        for (_, old), new in plan.names.items():
            self.anywhere[old].add(new)
        self.methods = {old: min(news) for old, news in group_methods(plan).items() if len(news) == 1}
        self.imported: dict[str, str] = {}

    def follow_text(self, text: str) -> str:
        """Rename in all examples of a text."""
        lines = text.splitlines(keepends=True)
        return "".join(self.follow_line(line) if re.match(r"\s*(>>>|\.\.\.) ", line) else line for line in lines)

    def follow_line(self, line: str) -> str:
        """Rename in one line of an example; what it imports is renamed in the lines after it."""
        is_import = "import" in line

        def replace_word(match: re.Match[str]) -> str:
            word = match[0]
            if word in self.own:
                return self.own[word]
            if is_import and word[0].islower() and len(self.anywhere.get(word, ())) == 1:
                return min(self.anywhere[word])
            return self.imported.get(word, word)

        def replace_method(match: re.Match[str]) -> str:
            return f".{self.methods.get(match[1], match[1])}("

        new = re.sub(r"(?<![\w.\"'])[A-Za-z_]\w*(?=[\s(,.)\]]|$)", replace_word, line)
        new = re.sub(r"\.([a-z_]\w*)\(", replace_method, new)
        before, after = re.search(r"import (.*)", line), re.search(r"import (.*)", new)
        if before and after:
            for old, renamed in zip(before[1].split(","), after[1].split(","), strict=True):
                if old.strip() != renamed.strip():
                    self.imported[old.strip()] = renamed.strip()
        return new
