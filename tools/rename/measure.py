"""What the names and modules are like: one-word names, lines, modules with one importer, cycles of imports."""

import ast
import statistics
from collections import Counter, defaultdict

from tools.rename.source import FUNCTIONS, PACKAGE, Project


def measure_source(project: Project) -> list[str]:
    """Count functions by kind, those of one word, modules, their lines, and those that one neighbour imports."""
    files = {name: file for name, file in project.files.items() if project.source in file.path.parents}
    total: Counter[str] = Counter()
    single_word: Counter[str] = Counter()
    for file in files.values():
        for kind, name in list_functions(file.tree):
            total[kind] += 1
            single_word[kind] += len([word for word in name.split("_") if word]) == 1
    lines = {name: len(file.lines) for name, file in files.items()}
    importers = find_importers(project)
    alone = [name for name in files if _has_one_neighbour(name, importers[name] - {name})]
    return [
        *(f"{kind}: {single_word[kind]} of {total[kind]} have one word" for kind in sorted(total)),
        f"modules: {len(lines)}, median {statistics.median(lines.values()):g} lines, {sum(lines.values())} in all",
        f"modules with one importer, in their own package: {len(alone)}, {sum(lines[name] for name in alone)} lines",
    ]


def list_functions(tree: ast.Module) -> list[tuple[str, str]]:
    """List a module's functions as (kind, name), without those that Python itself calls."""
    found = []
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, FUNCTIONS) or node.name.startswith("__") or node.name == "_":
                continue
            decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if decorators & {"property", "cached_property"}:
                kind = "properties"
            elif isinstance(parent, ast.ClassDef):
                kind = "methods"
            else:
                kind = "nested functions" if isinstance(parent, ast.FunctionDef) else "functions"
            found.append((kind, node.name))
    return found


def find_importers(project: Project) -> dict[str, set[str]]:
    """Give the modules of the source that import each of its modules."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, file in project.files.items():
        if project.source not in file.path.parents:
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    importers[full if full in project.files else node.module].add(name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(name)
    return importers


def _has_one_neighbour(module: str, importers: set[str]) -> bool:
    return len(importers) == 1 and min(importers).split(".")[:2] == module.split(".")[:2]


def find_cycles(project: Project) -> list[str]:
    """List cycles among imports at the top of modules, each with the edges that close it."""
    graph: dict[str, set[str]] = {}
    for name, file in project.files.items():
        if project.source in file.path.parents:
            graph[name] = set()
            for node in file.tree.body:
                if isinstance(node, ast.ImportFrom) and node.module in project.files:
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                    graph[name].update(full if full in project.files else node.module for full in names)
    lines = []
    for cycle in find_components(graph):
        lines.append(f"cycle of {len(cycle)}")
        lines += [f"    {module} -> {', '.join(sorted(graph[module] & set(cycle)))}" for module in cycle]
    return lines


def find_components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Give the strongly connected components of more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            position = stack.index(node)
            component = stack[position:]
            del stack[position:]
            if len(component) > 1:
                components.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return components
