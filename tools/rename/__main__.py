"""`python -m tools.rename STEP [--apply]`, from the root of the clone."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.rename.follow import follow_doctests, follow_methods
from tools.rename.measure import find_cycles, measure_source
from tools.rename.modules import join_apps, move_modules
from tools.rename.plan import Plan, check_methods, check_moves, check_names, prepare_texts, read_plan
from tools.rename.source import Project
from tools.rename.symbols import rename_symbols


def run_names(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Rename functions, classes and constants of modules."""
    project = read_prepared(root, plan, "names")
    problems = check_names(project, plan) or rename_symbols(project, plan.names)
    print(project.count_edits(), "edits")
    if apply and not problems:
        write_texts(prepare_texts(root, plan, "names"))
        project.write_edits()
    return problems


def run_methods(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Rename methods by mypy's types: minutes."""
    from tools.rename.methods import rename_methods

    project = Project(root)
    problems = check_methods(project, plan)
    if problems:
        return problems
    for line in rename_methods(project, plan.methods):
        print("unresolved:", line)
    print(project.count_edits(), "edits")
    if apply:
        project.write_edits()
    return []


def run_follow(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Follow renamed methods in tests, and names and methods in doctests."""
    project = Project(root)
    ambiguous, doubtful = follow_methods(project, plan)
    for line in ambiguous:
        print("ambiguous, left as it is:", line)
    for line in doubtful:
        print("renamed, but tests have a member of that name:", line)
    texts = follow_doctests(project, plan)
    print(project.count_edits(), "edits, and doctests of", len(texts), "modules")
    if apply:
        project.write_edits()
        write_texts(texts)
    return []


def run_modules(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Move and join modules."""
    project = read_prepared(root, plan, "modules")
    problems = check_moves(project, plan)
    if problems:
        return problems
    problems, count = move_modules(project, plan, apply, prepare_texts(root, plan, "modules"))
    print(len(plan.moves), "modules,", count, "files that import them")
    return problems


def run_apps(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Put the applications into one package."""
    problems, count = join_apps(root, plan.apps, apply)
    print(count, "files that name them")
    return problems


def run_cycles(root: Path, plan: Plan, apply: bool) -> list[str]:
    """List cycles of imports."""
    return find_cycles(Project(root))


def run_measure(root: Path, plan: Plan, apply: bool) -> list[str]:
    """Measure names and modules."""
    for line in measure_source(Project(root)):
        print(line)
    return []


def read_prepared(root: Path, plan: Plan, step: str) -> Project:
    """Read the project as it is once a step's preparations are made."""
    return Project(root, prepare_texts(root, plan, step))


def write_texts(texts: dict[Path, str]) -> None:
    """Write files."""
    for path, text in texts.items():
        path.write_text(text)


STEPS: dict[str, Callable[[Path, Plan, bool], list[str]]] = {
    "names": run_names,
    "methods": run_methods,
    "follow": run_follow,
    "modules": run_modules,
    "apps": run_apps,
    "cycles": run_cycles,
    "measure": run_measure,
}


def main() -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(prog="python -m tools.rename", description=__doc__)
    parser.add_argument("step", choices=STEPS, help="; ".join(f"{name}: {run.__doc__}" for name, run in STEPS.items()))
    parser.add_argument("--apply", action="store_true", help="change files, unless there are problems")
    given = parser.parse_args()
    root = Path.cwd()
    if not (root / "src").is_dir():
        parser.error("run it from the root of the clone")
    problems = STEPS[given.step](root, read_plan(), given.apply)
    for problem in problems:
        print("problem:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
