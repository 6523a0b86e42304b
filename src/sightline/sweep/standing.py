"""Where a job stands on disk."""

from enum import StrEnum
from pathlib import Path

from sightline.config import Experiment
from sightline.engine import RunRecord, read_settings
from sightline.engine.record import DATABASE


class JobStatus(StrEnum):
    """What is to be done with a job."""

    START = "start"
    RESUME = "resume"
    DONE = "done"
    TAKEN = "taken"
    """Another run, of other settings, lies in its folder."""


def job_status(directory: Path, experiment: Experiment) -> JobStatus:
    """How far the run in a folder is; one that was killed before its first release is started anew."""
    if not (directory / DATABASE).is_file():
        return JobStatus.START
    with RunRecord.open(directory) as record:
        status, begun = record.facts.get("status"), record.pages.count_releases() > 0
    if not begun:
        return JobStatus.START
    if read_settings(directory) != experiment:
        return JobStatus.TAKEN
    return JobStatus.DONE if status in ("finished", "stopped") else JobStatus.RESUME
