"""Mechanisms and samplers state what other code must know; no other package tests for their class."""

import ast
import importlib
import inspect
import pkgutil

import sightline.mechanisms
from sightline.mechanisms import SAMPLERS, CohortSampler
from tests.house.test_packages import FILES, package_of
from tests.laws.noise import mechanism_classes
from tests.loops import for_every

OUTSIDE = [path for path in FILES if package_of(path) != "mechanisms"]
ASKING = {"isinstance", "issubclass"}


def sampler_classes():
    contract = {name for name in vars(CohortSampler) if not name.startswith("_")}
    modules = pkgutil.iter_modules(sightline.mechanisms.__path__, "sightline.mechanisms.")
    things = [thing for info in modules for thing in vars(importlib.import_module(info.name)).values()]
    kinds = {thing for thing in things if inspect.isclass(thing) and thing is not CohortSampler}
    return {kind for kind in kinds if contract <= {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}}


CLOSED = {kind.__name__ for kind in mechanism_classes() | sampler_classes()}


def asked_classes(source):
    """Return the closed classes that a module tests for, directly or through a constant or another name."""
    tree = ast.parse(source)
    meant = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            meant.update({name.asname: {name.name} for name in node.names if name.asname})
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            meant[node.targets[0].id] = names_in(node.value)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
            found |= names_in(node.args[1])
        elif isinstance(node, ast.MatchClass):
            found |= names_in(node.cls)
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            found |= names_in(node)
    return {name for one in found for name in {one} | meant.get(one, set())} & CLOSED


def names_in(node):
    """Yield every name in an expression, including the last part of a dotted one."""
    words = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return words | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


@for_every(OUTSIDE)
def test_no_other_package_asks_for_the_class_of_a_mechanism_or_sampler(path):
    assert asked_classes(path.read_text()) == set()


def test_the_closed_classes_are_those_of_the_registries():
    assert {"CentralMean", "LocalMean", "NoiseByTrust", "SegmentSums", "Objective", "NoPrivacy"} <= CLOSED
    assert {"Full", "PoissonCohorts", "FixedCohorts", "ScheduledCohorts", "ThinnedCohorts"} <= CLOSED
    assert set(SAMPLERS) == {"full", "poisson", "fixed", "balanced", "check_ins", "turns"}


@for_every(
    [
        "isinstance(m, CentralMean | LocalMean)",
        "isinstance(m, mechanisms.CentralMean)",
        "KINDS = (CentralMean, LocalMean)\nisinstance(m, KINDS)",
        "from sightline.mechanisms import CentralMean as Trusted\nissubclass(m, Trusted)",
        "type(m) is CentralMean",
        "match m:\n    case CentralMean():\n        pass",
    ],
)
def test_every_way_to_ask_is_seen(source):
    assert "CentralMean" in asked_classes(source)
    assert asked_classes("isinstance(m, Public)") == set()
