"""Modules: their text moves or joins, and every import, reference and path in texts follows."""

import ast
import re
import shutil
from collections import defaultdict
from pathlib import Path

from tools.rename.plan import Apps, Move, Plan
from tools.rename.source import PACKAGE, Project, ScopeVisitor, SourceFile, list_files

TEXTS = frozenset({".py", ".md", ".toml", ".yml", ".html", ".txt", ".json", ".ipynb", ""})
TODO = '"""TODO"""\n'


def move_modules(project: Project, plan: Plan, apply: bool, prepared: dict[Path, str]) -> tuple[list[str], int]:
    """Move all modules of the plan; give what stands in the way and how many files refer to moved modules."""
    targets = {source: move.target for move in plan.moves for source in move.sources}
    problems = [problem for move in plan.moves for problem in find_clashes(project, move, targets)]
    rewriters = [ImportRewriter(project, file, targets) for file in project.files.values()]
    texts = {rewriter.file.path: rewriter.rewrite() for rewriter in rewriters}
    problems += [problem for rewriter in rewriters for problem in rewriter.problems]
    changed = {path: text for path, text in texts.items() if text is not None}
    if apply and not problems:
        for path, text in (prepared | changed).items():
            path.write_text(text)
        for move in plan.moves:
            join_modules(project, move)
        for old, new in plan.carried:
            (project.root / old).rename(project.root / new)
        rewrite_texts(project.root, targets)
    return problems, len(changed)


def find_clashes(project: Project, move: Move, targets: dict[str, str]) -> list[str]:
    """List names that two sources of a module define, or import as different things."""
    problems = []
    defined: dict[str, list[str]] = defaultdict(list)
    for source in move.sources:
        for name, binding in project.bindings[source].items():
            if binding.kind == "definition" and name != "__all__":
                defined[name].append(source)
    problems += [f"{move.target}: {n} is defined in {s}" for n, s in defined.items() if len(s) > 1]
    imported: dict[str, object] = {}
    for source in move.sources:
        for name, binding in project.bindings[source].items():
            joins = binding.kind == "imported" and targets.get(binding.module) == move.target
            if binding.kind == "definition" or joins:
                continue
            if imported.setdefault(name, binding) != binding:
                problems.append(f"{move.target}: {name} is imported as {imported[name]} and as {binding} in {source}")
            if name in defined:
                problems.append(f"{move.target}: {name}, imported in {source}, is defined in {defined[name]}")
    return problems


class ImportRewriter(ScopeVisitor):
    """Rewrites one file's imports of moved modules, and the words that stood for those modules."""

    def __init__(self, project: Project, file: SourceFile, targets: dict[str, str]) -> None:
        """Begin at a file; `targets` say where each module goes."""
        super().__init__(project, file)
        self.targets = targets
        self.own = targets.get(file.name)
        self.words: dict[str, str] = {}  # what a module was called here -> what it is called now; "" if it is here
        self.problems: list[str] = []

    def rewrite(self) -> str | None:
        """Give the file's new text, or None if nothing changes."""
        replacements = [
            (node, self.rewrite_import(node)) for node in ast.walk(self.file.tree) if self.is_import_touched(node)
        ]
        if self.words:
            self.visit(self.file.tree)
        if not replacements and not self.file.edits:
            return None
        lines = self.file.apply_edits()
        for node, statements in sorted(replacements, key=lambda pair: -pair[0].lineno):
            tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().rstrip("\n")
            new = [" " * node.col_offset + statement for statement in statements]
            if new and tail.strip().startswith("#"):
                new[-1] += tail
            lines[node.lineno - 1 : node.end_lineno] = [line + "\n" for line in new]
        return "".join(lines)

    def is_import_touched(self, node: ast.AST) -> bool:
        """Tell whether a node is an import of a module that moves."""
        if isinstance(node, ast.Import):
            return any(alias.name in self.targets for alias in node.names)
        if not isinstance(node, ast.ImportFrom) or not node.module:
            return False
        return node.module in self.targets or any(f"{node.module}.{a.name}" in self.targets for a in node.names)

    def rewrite_import(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        """Give the statements that replace an import."""
        if isinstance(node, ast.Import):
            return [f"import {_write_alias(self.targets.get(a.name, a.name), a.asname)}" for a in node.names]
        groups: dict[str, dict[str, None]] = defaultdict(dict)
        base = node.module or ""
        for alias in node.names:
            if self.is_moved_module(base, alias.name):
                target = self.targets[f"{base}.{alias.name}"]
                package, _, name = target.rpartition(".")
                if target == self.own:
                    self.words[alias.asname or alias.name] = ""
                    continue
                groups[package][_write_alias(name, alias.asname)] = None
                if not alias.asname and name != alias.name:
                    self.words[alias.name] = name
            else:
                target = self.targets.get(base, base)
                if target != self.own:
                    groups[target][_write_alias(alias.name, alias.asname)] = None
                elif alias.asname not in (None, alias.name):
                    self.problems.append(f"{self.file.name}: {alias.asname} is an alias of a name that is now here")
        return [f"from {package} import {', '.join(names)}" for package, names in groups.items()]

    def is_moved_module(self, base: str, name: str) -> bool:
        """Tell whether `from base import name` imports a module that moves, not a name of `base`."""
        if f"{base}.{name}" not in self.targets:
            return False
        binding = self.project.bindings.get(base, {}).get(name)
        return binding is None or (binding.kind, binding.module, binding.name) == ("imported", base, name)

    def see_attribute(self, node: ast.Attribute) -> None:
        """Follow `module.name`."""
        if isinstance(node.value, ast.Name) and self.is_word(node.value):
            word, new = node.value.id, self.words[node.value.id]
            old = word if new else f"{word}."
            self.file.add_edit(node.value.lineno, node.value.col_offset, old, new)

    def see_call(self, node: ast.Call) -> None:
        """Follow a module that is handed to a function."""
        for argument in node.args:
            if isinstance(argument, ast.Name) and self.is_word(argument) and self.words[argument.id]:
                self.file.add_edit(argument.lineno, argument.col_offset, argument.id, self.words[argument.id])

    def is_word(self, node: ast.Name) -> bool:
        """Tell whether a name stands for a module that moves."""
        binding = self.look_up(node.id)
        return node.id in self.words and (binding is None or binding.kind != "local")


def _write_alias(name: str, alias: str | None) -> str:
    return f"{name} as {alias}" if alias else name


def join_modules(project: Project, move: Move) -> None:
    """Write a module from its sources, delete them, and make the packages that it needs."""
    files = [SourceFile(project.root, project.files[source].path) for source in move.sources]
    text = files[0].text if len(files) == 1 and not move.doc else join_texts(files, move.doc)
    folder = project.source / move.target.replace(".", "/")
    was_package = move.target in move.sources and project.files[move.target].is_package
    path = folder.with_name(folder.name + ".py")
    if (folder / "__init__.py").exists() and not was_package:
        path = folder / "__init__.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.path != path:
            file.path.unlink()
    path.write_text(text)
    if was_package and folder.is_dir():
        shutil.rmtree(folder)
    package = path.parent
    while package != project.source / PACKAGE and not (package / "__init__.py").exists():
        (package / "__init__.py").write_text(TODO)
        print("new package", package.relative_to(project.root))
        package = package.parent


def join_texts(files: list[SourceFile], doc: str | None) -> str:
    """Join modules: one docstring, all imports, one block of imports for types, then the bodies."""
    imports: dict[str, None] = {}
    for_types: dict[str, None] = {}
    bodies = []
    for file in files:
        doc = doc or ast.get_docstring(file.tree, clean=False)
        kept = list(file.lines)
        for position, node in enumerate(file.tree.body):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines = file.lines[first:last]
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports["".join(lines).rstrip("\n")] = None
            elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                for_types["".join(lines[1:])] = None
            elif position > 0 or ast.get_docstring(file.tree) is None:
                continue
            kept[first:last] = [""] * len(lines)
        bodies.append("".join(kept).strip("\n") + "\n")
    text = f'"""{doc}"""\n\n' + "\n".join(imports) + "\n"
    if for_types:
        text += "\nif TYPE_CHECKING:\n" + "".join(for_types)
    return text + "\n\n" + "\n\n".join(bodies)


def rewrite_texts(root: Path, targets: dict[str, str]) -> None:
    """Follow moved modules in texts: dotted names and paths of files, in code, documents and settings."""
    packages = {parent for new in targets.values() for parent in _list_parents(new)}
    words = [
        re.escape(old) + (r"(?!\.\w)" if old in packages else "") for old in sorted(targets, key=len, reverse=True)
    ]
    dotted = re.compile(rf"\b({'|'.join(words)})(?!\w)(?!\.(?:py|md)\b)")
    paths = {_write_path(old): _write_path(new) for old, new in targets.items()}
    by_length = sorted(paths.items(), key=lambda pair: -len(pair[0]))
    for file in list_files(root):
        before = _read_text(file, TEXTS)
        if before is None:
            continue
        after = "".join(
            line
            if file.suffix == ".py" and re.match(r"\s*(from|import)\s", line)
            else dotted.sub(lambda match: targets[match[1]], line)
            for line in before.splitlines(keepends=True)
        )
        for old, new in by_length:
            after = after.replace(old, new)
        if file.suffix == ".md":
            for old, new in by_length:
                if old.count("/") > 1:
                    short = re.escape(old.split("/", 1)[1])
                    after = re.sub(rf"(?<![\w/]){short}\b", new.split("/", 1)[1], after)
        if after != before:
            file.write_text(after)


def _list_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _write_path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _read_text(path: Path, suffixes: frozenset[str]) -> str | None:
    if path.suffix not in suffixes:
        return None
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def join_apps(root: Path, apps: Apps, apply: bool) -> tuple[list[str], int]:
    """Put packages into one package and follow in all texts; give what stands in the way and how many files change."""
    source = root / "src" / PACKAGE
    problems = [f"{PACKAGE}.{m}: no such package" for m in apps.members if not (source / m / "__init__.py").exists()]
    if apply and not problems:
        (source / apps.package).mkdir(exist_ok=True)
        (source / apps.package / "__init__.py").write_text(f'"""{apps.doc}"""\n')
        for member in apps.members:
            (source / member).rename(source / apps.package / member)
    changed = 0
    for file in list_files(root):
        before = _read_text(file, TEXTS - {".json", ".ipynb"})
        if before is not None:
            after = follow_apps(before, apps, file.suffix == ".py")
            changed += after != before
            if apply and not problems and after != before:
                file.write_text(after)
    return problems, changed


def follow_apps(text: str, apps: Apps, is_python: bool) -> str:
    """Follow the packages that joined one package in a text."""
    members = "|".join(apps.members)
    inside = f"{PACKAGE}.{apps.package}"
    text = re.sub(rf"\b{PACKAGE}\.({members})(?=[.:\" '`)\n])(?!\.(md|html|toml))", rf"{inside}.\1", text)
    text = re.sub(rf"{PACKAGE}/({members})/", rf"{PACKAGE}/{apps.package}/\1/", text)

    def split_import(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split(",")]
        moved = [name for name in names if name.split(" ")[0] in apps.members]
        kept = [name for name in names if name not in moved]
        groups = [(PACKAGE, kept), (inside, moved)]
        return "\n".join(f"{match[1]}from {package} import {', '.join(group)}" for package, group in groups if group)

    if is_python:
        text = re.sub(rf"^( *)from {PACKAGE} import ([\w, ]+)$", split_import, text, flags=re.MULTILINE)
    return text
