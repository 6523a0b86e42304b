"""The growth gate: how large the tree is, compared with `size.toml`.

    python -m tests.house.size             print the table; exit 1 when a limit is exceeded (`make size`)
    python -m tests.house.size --write     also write the table into docs/architecture.md

Raise a limit only together with the feature that needs it.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sightline"
LIMITS = ROOT / "size.toml"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- size -->\n", "<!-- /size -->"
RIDDLES = re.compile(r"\b(?:who[e]ver|some[b]ody|a[n]ew|so\s+many)\b", re.IGNORECASE)
"""Words that make a sentence hard to read. The brackets keep this file from matching itself."""
RIDDLE_FOLDERS = ("src/sightline", "docs", "examples", "benchmarks", "papers", "tests")
LONG_FILE = 450
"""A source file with more lines than this counts as long."""
WIDTHS = {
    "Round": "algorithms/contract.py",
    "Mechanism": "mechanisms/contract.py",
    "ChannelMechanism": "mechanisms/contract.py",
    "Algorithm": "algorithms/contract.py",
    "ClientExecutor": "mechanisms/updates.py",
    "BuiltExperiment": "engine/build.py",
}
"""The contracts whose width is limited, and where each is defined."""
HELP = "get back within it, or change the limit in the commit that needs it and say why"
WALK = re.compile(r"(\d+) files, depth (\d+),")

Modules = dict[str, ast.Module]


@cache
def parse_file(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def source_files() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def read_modules() -> Modules:
    """Return every module, parsed, by its dotted name."""
    modules = {}
    for path in source_files():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = parse_file(path)
    return modules


def count_lines(paths: list[Path]) -> int:
    """Return the number of lines of some files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def comment_share(paths: list[Path]) -> float:
    """Return whole-line comments as a percentage of code lines (no blank lines, comments or docstrings)."""
    comments = code = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        strings, documented = _string_lines(parse_file(path))
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            is_comment = line.startswith("#") and number not in strings
            comments += is_comment
            code += bool(line) and not is_comment and number not in documented
    return 100 * comments / code


def _string_lines(tree: ast.Module) -> tuple[set[int], set[int]]:
    """Return the lines that lie inside any string, and those of docstrings."""
    strings, documented = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented |= set(range(node.lineno, node.end_lineno + 1))
    return strings, documented


def contract_width(name: str) -> int:
    """Return the number of public members that a contract declares."""
    tree = ast.parse((SOURCE / WIDTHS[name]).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    names = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    names |= {node.target.id for node in found.body if isinstance(node, ast.AnnAssign)}
    return sum(not member.startswith("_") for member in names)


def importers(modules: Modules) -> dict[str, set[str]]:
    """Return the modules that import each module, at the top or inside functions."""
    result = defaultdict(set)
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
                result[target].add(name)
    return result


def single_importers(modules: Modules) -> list[str]:
    """Return the modules that exactly one other module imports, one of their own package."""
    found = importers(modules)
    others = {name: found[name] - {name} for name in modules}
    return [name for name, who in others.items() if len(who) == 1 and package_of(*who) == package_of(name)]


def package_of(module: str) -> str:
    """Return the package of a module: `sightline.ledger`, or one of `sightline.apps`."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["apps"] else 2])


def core_files() -> list[Path]:
    """Return the files that the map lists as the core, in reading order."""
    text = (SOURCE / "README.md").read_text(encoding="utf-8").split("## The core in reading order")[1]
    paths = []
    for line in text.splitlines():
        names = re.findall(r"`([\w/]+\.py)`", line) if re.match(r"\d+\. ", line) else []
        package = names[0].split("/")[0] if names else ""
        paths += [SOURCE / name if (SOURCE / name).is_file() else SOURCE / package / name for name in names]
    return paths


def doc_pages() -> list[Path]:
    """Return the pages of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def count_words(paths: list[Path]) -> int:
    """Return the number of words of some pages."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def find_riddles() -> list[str]:
    """Return `path:line: word` for every riddle word in code, tests and prose."""
    kinds = {".py", ".md", ".html", ".js", ".mjs", ".c", ".toml"}
    paths = [path for folder in RIDDLE_FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds]
    lines = []
    for path in [*paths, *ROOT.glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for match in RIDDLES.finditer(text):
            lines.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}")
    return lines


def walk_quickstart() -> tuple[int, int]:
    """Return (files, call depth) of one round of the quickstart, from a process of its own: it is profiled."""
    command = [sys.executable, "-m", "tests.house.walk", "examples/quickstart.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files, depth = WALK.search(done.stdout).groups()
    return int(files), int(depth)


def measure(*, walk: bool = True) -> dict[str, float]:
    """Return every number that `size.toml` limits; without `walk`, those that need no run."""
    modules, pages = read_modules(), doc_pages()
    numbers: dict[str, float] = {
        "source files": len(source_files()),
        "source lines": count_lines(source_files()),
        f"files over {LONG_FILE} lines": sum(count_lines([path]) > LONG_FILE for path in source_files()),
        "core lines": count_lines(core_files()),
        "modules with one importer": len(single_importers(modules)),
        **{f"members of {name}": contract_width(name) for name in WIDTHS},
        "documentation words": count_words(pages),
        "documentation pages": len(pages),
        "riddle words": len(find_riddles()),
        "comment lines per 100 lines of code": round(comment_share(source_files()), 2),
    }
    if walk:
        numbers["files of a quickstart round"], numbers["call depth of a quickstart round"] = walk_quickstart()
    return numbers


def read_limits() -> dict[str, dict[str, float]]:
    """Return the rows of `size.toml`: for every number its limit (`most` or `least`), goal and starting point."""
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


def find_excess(numbers: dict[str, float]) -> list[str]:
    """Return one line per number that is beyond its limit or has none: which limit, and what to do."""
    lines = []
    for name, value in numbers.items():
        row = read_limits().get(name)
        if row is None:
            lines.append(f"{name}={value:g}: size.toml has no limit for it; add a row with before, most and goal")
        elif value > row.get("most", value):
            lines.append(f"{name}={value:g}: above most={row['most']:g} in size.toml; {HELP}")
        elif value < row.get("least", value):
            lines.append(f"{name}={value:g}: below least={row['least']:g} in size.toml; {HELP}")
    return lines


def format_table(numbers: dict[str, float]) -> str:
    """Return the table as Markdown: before the clean-up, now, limit, goal."""
    lines = ["| | before | now | limit | goal |", "|---|---|---|---|---|"]
    for name, value in numbers.items():
        row = read_limits().get(name, {})
        cells = (row.get("before"), value, row.get("most", row.get("least")), row.get("goal"))
        lines.append(f"| {name} | {' | '.join('' if cell is None else f'{cell:,g}' for cell in cells)} |")
    return "\n".join(lines)


def read_page() -> str:
    """Return the table of docs/architecture.md."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write_page(table: str) -> None:
    """Put the table between the marks of docs/architecture.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    measured = measure()
    print(format_table(measured))
    if parser.parse_args().write:
        write_page(format_table(measured))
        measured["documentation words"] = count_words(doc_pages())  # a new row of the table adds words
        write_page(format_table(measured))
    excess = find_excess(measured)
    print("\n".join(excess))
    sys.exit(bool(excess))
