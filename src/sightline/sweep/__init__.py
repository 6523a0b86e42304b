"""Every combination of some settings, several seeds, side by side."""

from sightline.sweep.jobs import SweepJob, list_jobs
from sightline.sweep.sweep import Swept, run_sweep

__all__ = ["SweepJob", "Swept", "list_jobs", "run_sweep"]
