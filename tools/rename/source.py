"""The source as the tool sees it: files with pending edits, what each module binds, and which scope a name is in."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PACKAGE = "sightline"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Binding(NamedTuple):
    """What a name stands for: `definition`, `module`, `imported` (a name of a module) or `local` (of a function)."""

    kind: str
    module: str = ""
    name: str = ""


class Origin(NamedTuple):
    """Where a name comes from: `name` of a module of the project, `module`, or `external`."""

    kind: str
    module: str
    name: str = ""


DEFINITION = Binding("definition")
LOCAL = Binding("local")


def list_files(root: Path, *patterns: str) -> list[Path]:
    """List the files of a clone that git knows or would know, without notebooks and this tool."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [name for name in listed if not name.startswith(("tools/", "docs/notebooks"))]
    return [root / name for name in kept if (root / name).is_file()]


class SourceFile:
    """One Python file, its syntax tree, and edits that wait to be written."""

    def __init__(self, root: Path, path: Path, text: str | None = None) -> None:
        """Read a file, or take its text as given."""
        self.path = path
        self.name = name_module(root, path)
        self.is_package = path.name == "__init__.py"
        self.text = path.read_text() if text is None else text
        self.lines = self.text.splitlines(keepends=True)
        self.tree = ast.parse(self.text)
        self.edits: set[tuple[int, int, str, str]] = set()

    def add_edit(self, line: int, column: int, old: str, new: str) -> None:
        """Replace `old` at a line and a column in bytes, once the edits are applied."""
        found = self.lines[line - 1].encode()[column:]
        if not found.startswith(old.encode()):
            raise ValueError(f"{self.path}:{line}:{column}: expected {old!r}")
        self.edits.add((line, column, old, new))

    def rename_definition(self, node: ast.stmt, old: str, new: str) -> None:
        """Rename a function or class where it is defined."""
        line = self.lines[node.lineno - 1].encode()
        keyword = re.compile(rb"(async\s+)?(def|class)\s+").match(line, node.col_offset)
        if keyword is None:
            raise ValueError(f"{self.path}:{node.lineno}: no definition")
        self.add_edit(node.lineno, keyword.end(), old, new)

    def apply_edits(self) -> list[str]:
        """Give the lines with all edits made."""
        lines = [line.encode() for line in self.lines]
        for number, column, old, new in sorted(self.edits, reverse=True):
            line = lines[number - 1]
            lines[number - 1] = line[:column] + new.encode() + line[column + len(old.encode()) :]
        return [line.decode() for line in lines]

    def write_edits(self) -> None:
        """Write the file if there is anything to change."""
        if self.edits:
            self.path.write_text("".join(self.apply_edits()))


def name_module(root: Path, path: Path) -> str:
    """Give the dotted name of a file, from `src` or else from the root."""
    source = root / "src"
    parts = list(path.relative_to(source if source in path.parents else root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def bind_imports(node: ast.Import | ast.ImportFrom, base: str) -> dict[str, Binding]:
    """Give what an import statement binds; `base` is the module that it imports from."""
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: Binding("imported", base, a.name) for a in node.names}
    tops = {a: a.name.split(".")[0] for a in node.names}
    return {a.asname or tops[a]: Binding("module", a.name if a.asname else tops[a]) for a in node.names}


def read_bindings(file: SourceFile) -> dict[str, Binding]:
    """Give what every name of a module's own scope stands for."""
    bindings: dict[str, Binding] = {}

    def read_statement(node: ast.stmt) -> None:
        if isinstance(node, DEFINITIONS):
            bindings[node.name] = DEFINITION
        elif isinstance(node, ast.Import):
            bindings.update(bind_imports(node, ""))
        elif isinstance(node, ast.ImportFrom):
            bindings.update(bind_imports(node, _resolve_relative(file, node)))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    read_statement(child)
                elif isinstance(child, ast.ExceptHandler):
                    for statement in child.body:
                        read_statement(statement)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or type(node).__name__ == "TypeAlias":
            for target in ast.walk(node):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    bindings.setdefault(target.id, DEFINITION)

    for node in file.tree.body:
        read_statement(node)
    return bindings


def _resolve_relative(file: SourceFile, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = file.name.split(".") if file.is_package else file.name.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


class Project:
    """All Python files of a clone by module name, and what each binds."""

    def __init__(self, root: Path, texts: dict[Path, str] | None = None) -> None:
        """Read all files; `texts` stand in for files that are to be changed first."""
        self.root = root
        self.source = root / "src"
        read = [SourceFile(root, path, (texts or {}).get(path)) for path in list_files(root, "*.py")]
        self.files = {file.name: file for file in read}
        self.bindings = {name: read_bindings(file) for name, file in self.files.items()}

    def count_edits(self) -> int:
        """Count the edits that wait."""
        return sum(len(file.edits) for file in self.files.values())

    def write_edits(self) -> None:
        """Write all files that have edits."""
        for file in self.files.values():
            file.write_edits()

    def find_origin(self, module: str, name: str, seen: tuple[tuple[str, str], ...] = ()) -> Origin | None:
        """Follow imports from a module's name to where it is defined."""
        if (module, name) in seen:
            return None
        binding = self.bindings.get(module, {}).get(name)
        if binding is None:
            full = f"{module}.{name}"
            return Origin("module", full) if full in self.files else None
        if binding.kind == "definition":
            return Origin("name", module, name)
        if binding.kind == "module":
            return Origin("module", binding.module)
        if binding.module in self.files:
            origin = self.find_origin(binding.module, binding.name, (*seen, (module, name)))
            full = f"{binding.module}.{binding.name}"
            if origin or full in self.files:
                return origin or Origin("module", full)
        return Origin("external", binding.module, binding.name)


def list_arguments(node: ast.arguments) -> list[ast.arg]:
    """List all arguments of a function."""
    starred = [argument for argument in (node.vararg, node.kwarg) if argument]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *starred]


def find_bound_names(node: ast.AST) -> set[str]:
    """Give the names that a function, class, lambda or comprehension binds in its own scope."""
    if isinstance(node, COMPREHENSIONS):
        return {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    names: set[str] = set()
    declared_global: set[str] = set()

    def collect(child: ast.AST) -> None:
        if isinstance(child, DEFINITIONS):
            names.add(child.name)
            return
        if isinstance(child, ast.Lambda):
            return
        if isinstance(child, COMPREHENSIONS):
            walrus = [n.target for n in ast.walk(child) if isinstance(n, ast.NamedExpr)]
            names.update(target.id for target in walrus)
            return
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store | ast.Del):
            names.add(child.id)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            names.update(a.asname or a.name.split(".")[0] for a in child.names)
        elif isinstance(child, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and child.name:
            names.add(child.name)
        elif isinstance(child, ast.Global):
            declared_global.update(child.names)
        for grandchild in ast.iter_child_nodes(child):
            collect(grandchild)

    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        names.update(argument.arg for argument in list_arguments(node.args))
    for child in [node.body] if isinstance(node, ast.Lambda) else getattr(node, "body", []):
        collect(child)
    return names - declared_global


def find_local_imports(node: ast.AST) -> dict[str, Binding]:
    """Give what the import statements in a function's or class's own scope bind."""
    found: dict[str, Binding] = {}

    def collect(child: ast.AST) -> None:
        if isinstance(child, (*DEFINITIONS, ast.Lambda)):
            return
        if isinstance(child, ast.Import | ast.ImportFrom):
            found.update(bind_imports(child, getattr(child, "module", None) or ""))
        for grandchild in ast.iter_child_nodes(child):
            collect(grandchild)

    if isinstance(node, DEFINITIONS):
        for child in node.body:
            collect(child)
    return found


class ScopeVisitor(ast.NodeVisitor):
    """Walks one file and knows at every name which scope it is looked up in; subclasses say what they see."""

    def __init__(self, project: Project, file: SourceFile) -> None:
        """Begin at a file's module scope."""
        self.project = project
        self.file = file
        self.scopes: list[tuple[bool, set[str], dict[str, Binding]]] = []

    def see_name(self, node: ast.Name, binding: Binding | None) -> None:
        """Take note of a name; its binding is None in module scope."""

    def see_attribute(self, node: ast.Attribute) -> None:
        """Take note of an attribute."""

    def see_import(self, node: ast.ImportFrom) -> None:
        """Take note of an import from a module."""

    def see_call(self, node: ast.Call) -> None:
        """Take note of a call."""

    def look_up(self, name: str) -> Binding | None:
        """Give what a name stands for here; None when that is for the module scope to say."""
        for depth, (is_class, names, imports) in enumerate(reversed(self.scopes)):
            if name in names and not (is_class and depth > 0):
                return imports.get(name, LOCAL)
        return None

    def resolve(self, node: ast.expr) -> Origin | None:
        """Give where a dotted expression comes from."""
        project = self.project
        if isinstance(node, ast.Name):
            binding = self.look_up(node.id)
            if binding is None:
                return project.find_origin(self.file.name, node.id)
            if binding.kind == "module":
                return Origin("module", binding.module)
            if binding.kind == "imported" and binding.module in project.files:
                return project.find_origin(binding.module, binding.name)
        elif isinstance(node, ast.Attribute):
            origin = self.resolve(node.value)
            if origin and origin.kind == "module":
                full = f"{origin.module}.{node.attr}"
                if origin.module in project.files:
                    return project.find_origin(origin.module, node.attr)
                return Origin("module", full) if full in project.files else None
        return None

    def enter_scope(self, node: ast.AST, walk: Callable[[], None]) -> None:
        """Walk the inside of a scope."""
        self.scopes.append((isinstance(node, ast.ClassDef), find_bound_names(node), find_local_imports(node)))
        walk()
        self.scopes.pop()

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        """Visit nodes in turn."""
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit what is evaluated outside a function, then its body."""
        self.visit_all(node.decorator_list)
        self.visit_all(argument.annotation for argument in list_arguments(node.args))
        self.visit_all([*node.args.defaults, *node.args.kw_defaults, node.returns])
        self.enter_scope(node, lambda: self.visit_all(node.body))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Visit defaults, then the body."""
        self.visit_all([*node.args.defaults, *node.args.kw_defaults])
        self.enter_scope(node, lambda: self.visit(node.body))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit decorators and bases, then the body."""
        self.visit_all([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)])
        self.enter_scope(node, lambda: self.visit_all(node.body))

    def visit_comprehension_scope(self, node: ast.expr) -> None:
        """Visit the first iterable outside, the rest inside."""
        first, *others = node.generators
        self.visit(first.iter)

        def walk() -> None:
            self.visit_all([first.target, *first.ifs])
            for generator in others:
                self.visit_all([generator.target, generator.iter, *generator.ifs])
            self.visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

        self.enter_scope(node, walk)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_scope

    def visit_Name(self, node: ast.Name) -> None:
        """Report a name."""
        self.see_name(node, self.look_up(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Report an attribute, then what it is of."""
        self.see_attribute(node)
        self.visit(node.value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Report an import."""
        self.see_import(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Report a call, then its parts."""
        self.see_call(node)
        self.generic_visit(node)
