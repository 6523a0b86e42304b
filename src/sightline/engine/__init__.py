"""The loop, its checkpoints, its record, and the plan that calibrates its noise.

What trains is loaded when it is asked for: those who only read runs need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sightline.engine.record import RunRecord, finite

if TYPE_CHECKING:
    from sightline.engine.directory import CONFIG, MODEL, directory_to_resume, new_directory, read_settings
    from sightline.engine.loop import run
    from sightline.engine.planning import calibrated, plan
    from sightline.engine.setting import Setting, build

_LAZY = {
    "CONFIG": "directory",
    "MODEL": "directory",
    "Setting": "setting",
    "build": "setting",
    "calibrated": "planning",
    "directory_to_resume": "directory",
    "new_directory": "directory",
    "plan": "planning",
    "read_settings": "directory",
    "run": "loop",
}

__all__ = [
    "CONFIG",
    "MODEL",
    "RunRecord",
    "Setting",
    "build",
    "calibrated",
    "directory_to_resume",
    "finite",
    "new_directory",
    "plan",
    "read_settings",
    "run",
]


def __getattr__(name: str) -> Any:
    """Load the module that a name is in."""
    if name not in _LAZY:
        raise AttributeError(f"module 'sightline.engine' has no attribute {name!r}")
    return getattr(import_module(f"sightline.engine.{_LAZY[name]}"), name)
