"""Sweeps: every combination of some settings and several seeds, side by side."""

from sightline.apps.sweep.jobs import SweepJob, list_jobs
from sightline.apps.sweep.sweep import Swept, run_sweep

__all__ = ["SweepJob", "Swept", "list_jobs", "run_sweep"]
