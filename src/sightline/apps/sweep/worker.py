"""The worker process of a sweep: `python -m sightline.apps.sweep.worker` reads jobs as JSON lines and runs them.

Input: {"experiment": TOML, "directory", "resume"}. Output, one line each: {"round", "metric", "reached"} after a round,
then {"ended": status} or {"failed": reason}. Anything else that is printed goes to stderr.
"""

import json
import os
import sys
import tomllib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from sightline import api
from sightline.config import parse
from sightline.errors import SightlineError
from sightline.formatting import metric_words


def serve_jobs(jobs: IO[str], told: IO[str]) -> None:
    """Run every job from the input; report a failure and wait for the next job."""

    def tell(message: Mapping[str, Any]) -> None:
        told.write(json.dumps(message) + "\n")
        told.flush()

    def on_round(row: Mapping[str, Any]) -> None:
        title, reached = metric_words(row)
        tell({"round": row["round"], "metric": title, "reached": reached})

    for line in jobs:
        job = json.loads(line)
        directory = Path(job["directory"])
        try:
            experiment = parse(tomllib.loads(job["experiment"]))
            done = api.run(
                experiment, out=directory, resume=job["resume"], workers=1, progress=False, on_round=on_round
            )
            tell({"ended": done.metadata["status"]})
        except SightlineError as error:
            tell({"failed": str(error)})
        # The sweep is gone: stop here. The run can be resumed.
        except BrokenPipeError:
            raise
        except Exception as error:
            tell({"failed": f"{type(error).__name__}: {error}; see {_keep_traceback(directory)}"})


def _keep_traceback(directory: Path) -> Path:
    """Write the traceback of an unexpected failure and return its path."""
    path = directory.with_name(f"{directory.name}.error.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path


if __name__ == "__main__":
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # A user's model may print: keep stdout for messages only.
    os.dup2(2, 1)
    try:
        serve_jobs(sys.stdin, messages)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
