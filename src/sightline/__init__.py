"""Sightline: federated learning in which privacy is accounted along every line of sight.

>>> import sightline
>>> callable(sightline.run)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sightline import mkl
from sightline.errors import BudgetExhausted, InvalidInput, Refused, SightlineError

if TYPE_CHECKING:
    from sightline import (
        accounting,
        algorithms,
        config,
        data,
        engine,
        events,
        ledger,
        mechanisms,
        models,
        testing,
        topology,
    )
    from sightline.api import Callback, Run, run
    from sightline.apps import audit, report
    from sightline.apps.report.comparison import compare
    from sightline.config import Experiment, read
    from sightline.private_loop import clipped_gradient, make_private

__version__ = "0.2.0"

# Before anything imports torch: MKL reads its mode with its first operation and does not change it afterwards.
mkl.turn_on_reproducible_mode()

_LAZY = {
    **dict.fromkeys(("Callback", "Run", "run"), "sightline.api"),
    "compare": "sightline.apps.report.comparison",
    **dict.fromkeys(("Experiment", "read"), "sightline.config"),
    **dict.fromkeys(("clipped_gradient", "make_private"), "sightline.private_loop"),
}
_PACKAGES = {
    **{
        name: f"sightline.{name}"
        for name in ("accounting", "algorithms", "config", "data", "engine", "events", "ledger", "mechanisms", "models")
    },
    "topology": "sightline.topology",
    "testing": "sightline.testing",
    "audit": "sightline.apps.audit",
    "report": "sightline.apps.report",
}

__all__ = [
    "BudgetExhausted",
    "Callback",
    "Experiment",
    "InvalidInput",
    "Refused",
    "Run",
    "SightlineError",
    "accounting",
    "algorithms",
    "audit",
    "clipped_gradient",
    "compare",
    "config",
    "data",
    "engine",
    "events",
    "ledger",
    "make_private",
    "mechanisms",
    "models",
    "read",
    "report",
    "run",
    "testing",
    "topology",
]


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module on first use."""
    # Importing torch takes seconds; the accountant and the errors do not need it.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names only."""
    return sorted([*__all__, "__doc__", "__version__"])
