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
    from sightline import accounting, data, events, ledger
    from sightline.api import Run, run
    from sightline.config import Experiment, read

__version__ = "0.1.0"

mkl.turn_on_reproducible_mode()

_LAZY = {"run": "sightline.api", "Run": "sightline.api", "read": "sightline.config", "Experiment": "sightline.config"}
_ROOMS = ("accounting", "data", "events", "ledger", "config", "models", "engine", "report")

__all__ = [
    "BudgetExhausted",
    "Experiment",
    "InvalidInput",
    "Refused",
    "Run",
    "SightlineError",
    "accounting",
    "data",
    "events",
    "ledger",
    "read",
    "run",
]


def __getattr__(name: str) -> Any:
    """Load what is heavy only when it is asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _ROOMS:
        return import_module(f"sightline.{name}")
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")
