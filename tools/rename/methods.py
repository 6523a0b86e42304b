"""Methods: definitions, overrides and calls, found by the types that mypy gives to what a method is called on."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options
from tools.rename.plan import MethodRename
from tools.rename.source import FUNCTIONS, Project, SourceFile

FOLDERS = ("tests", "benchmarks", "experiments")
# Attributes of mypy's nodes that lead out of a file's own tree.
LEADS_AWAY = frozenset(
    "node info type names var analyzed unanalyzed_type def_var original_def mro unanalyzed_items imports alias_deps "
    "plugin_deps ignored_lines".split()
)


def rename_methods(project: Project, renames: tuple[MethodRename, ...]) -> list[str]:
    """Add the edits that rename methods to all files; list the calls whose object has no type or several."""
    result = check_types(project)
    families: dict[str, dict[str, str]] = defaultdict(dict)
    for rename in renames:
        for module, name in rename.classes:
            families[rename.old][f"{module}.{name}"] = rename.new
    unresolved = []
    for name, file in project.files.items():
        state = result.graph.get(name)
        if state is not None and state.tree is not None:
            renamer = MethodRenamer(file, state.tree, result.types, dict(families))
            renamer.rename_uses()
            renamer.rename_definitions()
            unresolved += renamer.unresolved
    return unresolved


def check_types(project: Project) -> build.BuildResult:
    """Let mypy find the type of every expression of the project: minutes."""
    options = Options()
    options.export_types = True
    options.preserve_asts = True
    options.check_untyped_defs = True
    options.ignore_missing_imports = True
    options.incremental = False
    options.mypy_path = [str(project.source), str(project.root)]
    options.python_version = (3, 11)
    options.plugins = ["pydantic.mypy"]
    options.namespace_packages = True
    options.explicit_package_bases = True
    options.show_traceback = True
    options.follow_imports = "normal"
    options.python_executable = sys.executable
    sources = [
        BuildSource(str(file.path), name, None)
        for name, file in project.files.items()
        if _is_checked(project, file.path)
    ]
    return build.build(sources, options, alt_lib_path=None)


def _is_checked(project: Project, path: Path) -> bool:
    if "peers" in path.parts:
        return False
    return project.source in path.parents or path.relative_to(project.root).parts[0] in FOLDERS


def list_classes(kind: types.Type) -> Iterator[nodes.TypeInfo | None]:
    """Give the classes that a value of a type may have; None where mypy knows nothing."""
    proper = types.get_proper_type(kind)
    if isinstance(proper, types.Instance):
        yield proper.type
    elif isinstance(proper, types.UnionType):
        for item in proper.items:
            yield from list_classes(item)
    elif isinstance(proper, types.TypeVarType):
        yield from list_classes(proper.upper_bound)
    elif isinstance(proper, types.TypeType):
        yield from list_classes(proper.item)
    elif isinstance(proper, types.TupleType):
        yield from list_classes(proper.partial_fallback)
    elif isinstance(proper, types.FunctionLike) and proper.is_type_obj():
        yield proper.type_object()
    elif isinstance(proper, types.AnyType):
        yield None


def list_member_uses(tree: nodes.MypyFile) -> list[nodes.MemberExpr | nodes.SuperExpr]:
    """List all `object.member` and `super().member` in a file."""
    found: list[nodes.MemberExpr | nodes.SuperExpr] = []
    seen: set[int] = set()
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list | tuple):
            stack.extend(node)
            continue
        if not isinstance(node, nodes.Node) or isinstance(node, nodes.TypeInfo | nodes.Var) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, nodes.MemberExpr | nodes.SuperExpr):
            found.append(node)
        for attribute in dir(node):
            if attribute.startswith("_") or attribute in LEADS_AWAY:
                continue
            try:
                value = getattr(node, attribute)
            except Exception:  # properties of mypy's nodes that assert what does not hold for this one
                continue
            if isinstance(value, nodes.Node | list | tuple):
                stack.append(value)
    return found


class MethodRenamer:
    """Renames in one file."""

    def __init__(
        self,
        file: SourceFile,
        tree: nodes.MypyFile,
        known: dict[nodes.Expression, types.Type],
        families: dict[str, dict[str, str]],
    ) -> None:
        """Take a file, mypy's tree and types of it, and per old name the new one by class."""
        self.file = file
        self.tree = tree
        self.known = known
        self.families = families
        self.unresolved: list[str] = []

    def rename_uses(self) -> None:
        """Rename where methods are called or named."""
        for use in list_member_uses(self.tree):
            if use.name not in self.families:
                continue
            if isinstance(use, nodes.SuperExpr):
                new = self.find_inherited(use.info, use.name) if use.info else None
                if new:
                    self.rename_use(use, new)
            else:
                self.rename_member(use)

    def rename_member(self, use: nodes.MemberExpr) -> None:
        """Rename `object.member` if the classes of the object agree on its new name."""
        kind = self.known.get(use.expr)
        classes = [None] if kind is None else list(list_classes(kind))
        news = {self.find_new(info, use.name) for info in classes if info is not None} - {None}
        place = f"{self.file.name}:{use.line} .{use.name}"
        if len(news) == 1:
            self.rename_use(use, str(news.pop()))
        elif news:
            self.unresolved.append(f"{place}: several: {sorted(map(str, news))}")
        elif None in classes and not _is_module(use.expr):
            self.unresolved.append(f"{place}: type unknown: {sorted(set(self.families[use.name].values()))}")

    def rename_use(self, use: nodes.MemberExpr | nodes.SuperExpr, new: str) -> None:
        """Rename the last word of an expression; mypy may count its column in bytes or in characters."""
        line = use.end_line or use.line
        text = self.file.lines[line - 1]
        column = (use.end_column or 0) - len(use.name)
        if text.encode()[column : column + len(use.name)] != use.name.encode():
            column = len(text[:column].encode())
        self.file.add_edit(line, column, use.name, new)

    def rename_definitions(self) -> None:
        """Rename methods where they are defined, in the classes of the plan and in those that inherit."""
        for node in ast.walk(self.file.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, FUNCTIONS) and method.name in self.families:
                    new = self.families[method.name].get(f"{self.file.name}.{node.name}")
                    symbol = self.tree.names.get(node.name)
                    if new is None and symbol is not None and isinstance(symbol.node, nodes.TypeInfo):
                        new = self.find_inherited(symbol.node, method.name)
                    if new:
                        self.file.rename_definition(method, method.name, new)

    def find_new(self, info: nodes.TypeInfo, member: str) -> str | None:
        """Give the new name of a class's member; None if the first class that defines it keeps it."""
        family = self.families[member]
        for base in info.mro:
            if base.fullname in family:
                return family[base.fullname]
            if member in base.names:
                return None
        return None

    def find_inherited(self, info: nodes.TypeInfo, member: str) -> str | None:
        """Give the new name that a base class of the plan gives a member."""
        family = self.families[member]
        return next((family[base.fullname] for base in info.mro[1:] if base.fullname in family), None)


def _is_module(node: nodes.Expression) -> bool:
    return isinstance(node, nodes.NameExpr) and isinstance(node.node, nodes.MypyFile)
