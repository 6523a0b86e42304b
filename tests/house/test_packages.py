"""The house keeps its own rules: who imports whom, who may use torch, that everything public says what it does."""

import ast
import inspect
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import sightline

SOURCE = Path(sightline.__file__).parent
PACKAGES = (
    "config events data models topology accounting ledger training private_loop mechanisms resources algorithms engine "
    "runtimes testing apps.audit apps.report results api apps.sweep apps.serve apps.cli"
).split()
"""The packages in their order: each imports only from those before it; `api` is `sightline.run`, `results` what it
returns, and `private_loop` is `sightline.make_private`."""
FOUNDATION = {"console", "errors", "formatting", "mkl", "plugins", "randomness"}
FLOWER = find_spec("flwr") is not None


def package_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:2]) if parts[0] == "apps" else parts[0]


def imports(path):
    """(module, what) of every import statement, also the ones inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", name.name) for name in node.names)


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if package_of(path) not in {"__init__", "__main__", "apps.__init__"}
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_from_those_above_it(path):
    package = package_of(path)
    for module, name in imports(path):
        if module == "sightline" and name not in PACKAGES:
            continue
        parts = (f"{module}.{name}" if module == "sightline" else module).split(".")
        if parts[0] != "sightline" or len(parts) < 2 or parts[1] in FOUNDATION:
            continue
        assert package not in FOUNDATION, f"{package} imports {module}"
        allowed = PACKAGES[: PACKAGES.index(package) + 1]
        wanted = ".".join([*parts, name][1:3]) if parts[1] == "apps" else parts[1]
        assert wanted in allowed, f"{package} may not import {wanted}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_libraries_stay_in_their_packages(path):
    package = package_of(path)
    for module, name in imports(path):
        top = module.split(".")[0]
        if package in {"events", "ledger", "accounting", "config", "topology"}:
            assert top != "torch", f"{package} imports torch"
        if top == "torch" and ("nn" in (name, *module.split(".")) or "autograd" in module or name == "autograd"):
            assert package in {"models", "training"}, f"{package} imports {module}.{name}"
        if top == "flwr":
            assert "flower" in path.parts, "only runtimes/flower imports flwr"


def public_things():
    for info in pkgutil.walk_packages([str(SOURCE)], "sightline."):
        if info.name.endswith("__main__") or (info.name.startswith("sightline.runtimes.flower.") and not FLOWER):
            continue
        module = import_module(info.name)
        for name, thing in vars(module).items():
            ours = getattr(thing, "__module__", None) == info.name
            if ours and not name.startswith("_") and (inspect.isfunction(thing) or inspect.isclass(thing)):
                yield f"{info.name}.{name}", thing


def test_everything_public_has_a_docstring():
    silent = [name for name, thing in public_things() if not (thing.__doc__ or "").strip()]
    assert silent == []


def test_no_names_that_say_nothing():
    assert not [path for path in FILES if path.stem in {"utils", "helpers", "common", "misc"}]


def test_no_assert_outside_the_tests():
    for path in FILES:
        assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)], path
