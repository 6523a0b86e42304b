"""The rules of the source: which package imports which, which may use torch, and that everything public has a docstring."""

import ast
import inspect
import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import sightline
from tests.loops import for_every

SOURCE = Path(sightline.__file__).parent
PACKAGES = (
    "config events data models topology accounting ledger training private_loop mechanisms laws resources algorithms engine "
    "runtimes testing apps.audit apps.report results api apps.sweep apps.serve apps.cli"
).split()
"""The packages in their order: each imports only from those before it; `api` is `sightline.run`, `results` what it
returns, and `private_loop` is `sightline.make_private`."""
FOUNDATION = {"console", "errors", "formatting", "mkl", "plugins", "randomness"}
FLOWER = find_spec("flwr") is not None


def package_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:2]) if parts[0] == "apps" else parts[0]


@cache
def nodes(path):
    """Parse a file once and return all nodes of its syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
    """Yield (module, what) of every import statement, including those inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", name.name) for name in node.names)


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if package_of(path) not in {"__init__", "__main__", "apps.__init__"}
)


@for_every(FILES)
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


@for_every(FILES)
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
    assert not [path for path in FILES if any(isinstance(node, ast.Assert) for node in nodes(path))]


ROOT = Path(__file__).parents[2]
CLIENTS = sorted(path for name in ("tests", "benchmarks", "papers") for path in (ROOT / name).rglob("*.py"))


@for_every(CLIENTS)
def test_every_name_that_tests_and_benchmarks_import_exists(path):
    """A change of one package is tried with the tests of that package; this check reads all the others."""
    for module, name in imports(path):
        if module.split(".")[0] == "sightline" and (FLOWER or "flower" not in module):
            found = import_module(module)
            assert not name or hasattr(found, name) or find_spec(f"{module}.{name}"), f"{module}.{name}"


def test_every_test_file_has_a_name_of_its_own():
    """Folders without `__init__.py` share one namespace: two files of one name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted({name for name in names if names.count(name) > 1}) == []
