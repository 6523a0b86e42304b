"""The loop, its checkpoints, its record, and the plan that calibrates its noise."""

from sightline.engine.directory import CONFIG, MODEL, directory_to_resume, new_directory
from sightline.engine.loop import run
from sightline.engine.plan import calibrated, plan
from sightline.engine.record import RunRecord, finite
from sightline.engine.setting import Setting, build

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
    "run",
]
