"""The engine: build an experiment, plan and calibrate its noise, run the loop, and keep the record of a run.

Modules that train are imported on first use, so that tools that only read runs need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sightline.engine.record import RunRecord, replace_nonfinite

if TYPE_CHECKING:
    from sightline.engine.build import BuiltExperiment, build_experiment
    from sightline.engine.loop import run_loop
    from sightline.engine.more_rounds import check_ended, count_added, plan_longer
    from sightline.engine.plan import calibrate_noise, plan_releases, plan_run
    from sightline.engine.run_directory import BEST, CONFIG, MODEL, directory_to_resume, new_directory, read_settings

_LAZY = {
    "BEST": "sightline.engine.run_directory",
    "CONFIG": "sightline.engine.run_directory",
    "MODEL": "sightline.engine.run_directory",
    "BuiltExperiment": "sightline.engine.build",
    "build_experiment": "sightline.engine.build",
    "calibrate_noise": "sightline.engine.plan",
    "check_ended": "sightline.engine.more_rounds",
    "count_added": "sightline.engine.more_rounds",
    "directory_to_resume": "sightline.engine.run_directory",
    "new_directory": "sightline.engine.run_directory",
    "plan_longer": "sightline.engine.more_rounds",
    "plan_releases": "sightline.engine.plan",
    "plan_run": "sightline.engine.plan",
    "read_settings": "sightline.engine.run_directory",
    "run_loop": "sightline.engine.loop",
}

__all__ = [
    "BEST",
    "CONFIG",
    "MODEL",
    "BuiltExperiment",
    "RunRecord",
    "build_experiment",
    "calibrate_noise",
    "check_ended",
    "count_added",
    "directory_to_resume",
    "new_directory",
    "plan_longer",
    "plan_releases",
    "plan_run",
    "read_settings",
    "replace_nonfinite",
    "run_loop",
]


def __getattr__(name: str) -> Any:
    """Import a lazily exported name. Raise AttributeError for an unknown one."""
    if name not in _LAZY:
        raise AttributeError(f"module 'sightline.engine' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
