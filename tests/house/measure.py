"""`python -m tests.house.measure [FOLDER ...]`: how large a tree of sources is, and how its names and imports look.

One row per folder (`src/sightline` when none is given), as Markdown; docs/architecture.md is written from it.
"""

import ast
import statistics
import sys
from collections import defaultdict
from pathlib import Path

Modules = dict[str, ast.Module]


def read_modules(folder: Path) -> tuple[Modules, list[int]]:
    """Every module by its dotted name, parsed, and the number of lines of each file."""
    modules, lines = {}, []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(text)
        lines.append(text.count("\n"))
    return modules, lines


def function_names(modules: Modules) -> list[str]:
    """The names of all functions, methods, properties and inner functions; those that Python prescribes are left out."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for tree in modules.values() for node in ast.walk(tree) if isinstance(node, kinds)]
    return [name for name in names if name != "_" and not name.startswith("__")]


def importers(modules: Modules) -> dict[str, set[str]]:
    """For every module, who imports it; also inside functions."""
    found = defaultdict(set)
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in modules else str(node.module) for target in inside]
            else:
                continue
            for target in targets:
                found[target].add(name)
    return found


def package_of(module: str) -> str:
    """The package in whose order a module stands: `sightline.ledger`, or one of `sightline.apps`."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["apps"] else 2])


def count_single_importers(modules: Modules) -> int:
    """Modules that exactly one other module imports, one of their own package."""
    found = importers(modules)
    others = {name: found[name] - {name} for name in modules}
    return sum(len(who) == 1 and package_of(*who) == package_of(name) for name, who in others.items())


def count_closets(modules: Modules) -> int:
    """The same without those whose one importer is the package itself, which offers them to everybody."""
    found = importers(modules)
    others = {name: found[name] - {name} for name in modules}
    inside = {name: who for name, who in others.items() if len(who) == 1 and package_of(*who) == package_of(name)}
    return sum(not name.startswith(f"{min(who)}.") for name, who in inside.items())


def table_row(folder: Path) -> str:
    """The five numbers of one tree."""
    modules, lines = read_modules(folder)
    names = function_names(modules)
    one_word = 100 * sum(len(name.strip("_").split("_")) == 1 for name in names) / len(names)
    counts = (count_single_importers(modules), count_closets(modules))
    numbers = (len(lines), f"{statistics.median(lines):.0f}", f"{one_word:.1f} %", *counts)
    return f"| {folder} | {' | '.join(map(str, numbers))} |"


if __name__ == "__main__":
    print(
        "| tree | source files | median lines | one-word function names | modules with one importer, of their package "
        "| of these, not offered by the package itself |"
    )
    print("|---|---|---|---|---|---|")
    for argument in sys.argv[1:] or ["src/sightline"]:
        print(table_row(Path(argument)))
