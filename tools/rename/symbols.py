"""Module-level names: definitions and every reference to them, found by scope and by following imports."""

import ast
import re

from tools.rename.source import (
    DEFINITIONS,
    FUNCTIONS,
    PACKAGE,
    Binding,
    Origin,
    Project,
    ScopeVisitor,
    SourceFile,
    find_bound_names,
)

BY_NAME = ("setattr", "delattr", "getattr", "object")


def rename_symbols(project: Project, names: dict[tuple[str, str], str]) -> list[str]:
    """Add the edits that rename `names` ((module, old): new) to all files; give what stands in the way."""
    problems = []
    for file in project.files.values():
        renamer = SymbolRenamer(project, file, names)
        renamer.rename_definitions()
        renamer.visit(file.tree)
        renamer.rename_strings()
        renamer.rename_annotations()
        problems += [*renamer.find_collisions(), *renamer.find_shadows()]
    return problems


class SymbolRenamer(ScopeVisitor):
    """Renames in one file."""

    def __init__(self, project: Project, file: SourceFile, names: dict[tuple[str, str], str]) -> None:
        """Begin at a file with no edits."""
        super().__init__(project, file)
        self.names = names
        self.bindings = project.bindings[file.name]

    def find_new(self, origin: Origin | None, spelled: str | None = None) -> str | None:
        """Give the new name of an origin; None if it keeps its name or is spelled otherwise here."""
        if origin is None or origin.kind != "name" or spelled not in (None, origin.name):
            return None
        return self.names.get((origin.module, origin.name))

    def find_new_in(self, module: str, name: str) -> str | None:
        """Give the new name of a module's name."""
        return self.find_new(self.project.find_origin(module, name))

    def rename_constant(self, node: ast.Constant, old: str, new: str | None) -> None:
        """Rename at the beginning of a string."""
        if new:
            self.file.add_edit(node.lineno, node.col_offset + 1, old, new)

    def rename_definitions(self) -> None:
        """Rename functions and classes where they are defined."""
        stack: list[ast.AST] = list(self.file.tree.body)
        while stack:
            node = stack.pop()
            if isinstance(node, DEFINITIONS):
                new = self.names.get((self.file.name, node.name))
                if new:
                    self.file.rename_definition(node, node.name, new)
            elif isinstance(node, ast.If | ast.Try | ast.With):
                stack.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))

    def see_name(self, node: ast.Name, binding: Binding | None) -> None:
        """Rename a name that stands for a renamed one."""
        found = binding or self.bindings.get(node.id)
        new = None
        if found is None:
            return
        if found.kind == "imported" and found.module in self.project.files and node.id == found.name:
            new = self.find_new_in(found.module, found.name)
        elif found.kind == "definition" and binding is None:
            new = self.names.get((self.file.name, node.id))
        if new:
            self.file.add_edit(node.lineno, node.col_offset, node.id, new)

    def see_attribute(self, node: ast.Attribute) -> None:
        """Rename `module.name`."""
        new = self.find_new(self.resolve(node), node.attr)
        if new and node.end_lineno and node.end_col_offset:
            self.file.add_edit(node.end_lineno, node.end_col_offset - len(node.attr.encode()), node.attr, new)

    def see_import(self, node: ast.ImportFrom) -> None:
        """Rename what is imported."""
        if node.module in self.project.files:
            for alias in node.names:
                new = self.find_new(self.project.find_origin(node.module, alias.name), alias.name)
                if new and new != alias.name:
                    self.file.add_edit(alias.lineno, alias.col_offset, alias.name, new)

    def see_call(self, node: ast.Call) -> None:
        """Rename in `setattr(module, "name", ...)` and its like."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in BY_NAME or len(node.args) < 2:
            return
        text = node.args[1]
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            origin = self.resolve(node.args[0])
            if origin and origin.kind == "module" and origin.module in self.project.files:
                self.rename_constant(text, text.value, self.find_new_in(origin.module, text.value))

    def rename_strings(self) -> None:
        """Rename in `__all__`, in dotted strings, and in tables from a name to the module it is in."""
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                for text in _list_strings(node.value):
                    self.rename_constant(text, text.value, self.find_new_in(self.file.name, text.value))
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if _is_string(key) and _is_string(value) and value.value in self.project.files:
                        self.rename_constant(key, key.value, self.find_new_in(value.value, key.value))
            elif _is_string(node):
                parts = re.fullmatch(rf"({PACKAGE}[\w.]*)([:.])(\w+)", node.value)
                if parts and parts[1] in self.project.files:
                    new = self.find_new_in(parts[1], parts[3])
                    self.rename_constant(node, node.value, new and f"{parts[1]}{parts[2]}{new}")

    def rename_annotations(self) -> None:
        """Rename in types that are written as strings."""
        imported: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.ImportFrom) and node.module in self.project.files:
                imported.update({a.asname or a.name: (node.module, a.name) for a in node.names})
        texts = [text for node in _list_annotations(self.file.tree) for text in _list_strings(node)]
        for text in texts:
            for word in re.finditer(r"(?<![\w.])([A-Za-z_]\w*)", text.value):
                origin = self.project.find_origin(self.file.name, word[1])
                if origin is None and word[1] in imported:
                    origin = self.project.find_origin(*imported[word[1]])
                new = self.find_new(origin, word[1])
                if new and text.lineno == text.end_lineno:
                    column = text.col_offset + 1 + len(text.value[: word.start()].encode())
                    self.file.add_edit(text.lineno, column, word[1], new)

    def find_collisions(self) -> list[str]:
        """List new names that the module has already, as its own or as an import."""
        module, bindings = self.file.name, self.bindings
        problems = [
            f"{module}: {old} -> {new} exists already"
            for (where, old), new in self.names.items()
            if where == module and new in bindings and (module, new) not in self.names
        ]
        for local, binding in bindings.items():
            if binding.kind == "imported" and binding.module in self.project.files and local == binding.name:
                new = self.find_new_in(binding.module, binding.name)
                if new and new != local and new in bindings and not self.find_new_in(module, new):
                    problems.append(f"{module}: import {local} -> {new} collides")
        return problems

    def find_shadows(self) -> list[str]:
        """List functions in which a variable has the new name of something that they refer to."""
        problems = []
        for node in ast.walk(self.file.tree):
            if isinstance(node, FUNCTIONS):
                inside = {e[3] for e in self.file.edits if node.lineno < e[0] <= (node.end_lineno or 0)}
                problems += [
                    f"{self.file.name}:{node.lineno} {node.name}: local {name} shadows the new name"
                    for name in sorted(find_bound_names(node) & inside)
                ]
        return problems


def _is_string(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _list_strings(node: ast.AST) -> list[ast.Constant]:
    return [child for child in ast.walk(node) if _is_string(child)]


def _list_annotations(tree: ast.Module) -> list[ast.expr]:
    """List the expressions that are types: annotations, aliases, the first argument of `cast`."""
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, FUNCTIONS):
            found.append(node.returns)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            found.append(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "cast" and node.args:
            found.append(node.args[0])
    return [node for node in found if node is not None]
