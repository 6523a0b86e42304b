"""The process behind one worker: `python -m sightline.apps.sweep.worker` reads jobs as JSON lines and runs them.

In: {"experiment": TOML, "directory", "resume"}. Out, one line each: {"round", "metric", "reached"} after a round, then
{"ended": status} or {"failed": reason}. Whatever else is printed meanwhile goes to stderr.
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
    """Run every job that comes in; a failure is told and the next job is waited for."""

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
        except BrokenPipeError:
            raise
        except Exception as error:
            tell({"failed": f"{type(error).__name__}: {error}; see {_keep_traceback(directory)}"})


def _keep_traceback(directory: Path) -> Path:
    """Where the traceback of an unexpected failure was written."""
    path = directory.with_name(f"{directory.name}.error.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path


if __name__ == "__main__":
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a model of the user's may print; the line of messages stays ours
    try:
        serve_jobs(sys.stdin, messages)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
