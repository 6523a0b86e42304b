"""Every combination of some settings, several seeds, side by side."""

from sightline.sweep.grid import Job, jobs
from sightline.sweep.sweep import Swept, sweep

__all__ = ["Job", "Swept", "jobs", "sweep"]
