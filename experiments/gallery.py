"""The commands that make the gallery's figures and tables whole, one after the other."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

from sightline.config.exhibit import exhibits

HERE = Path(__file__).parent


def commands() -> list[str]:
    """Every command that makes a whole figure or table, once, in the gallery's order."""
    return list(dict.fromkeys(exhibit.whole for exhibit in exhibits(HERE)))


def run_all() -> int:
    """Run them one after the other, say how long each took, and go on when one fails; returns how many failed."""
    failed = 0
    for number, command in enumerate(commands(), 1):
        print(f"[{number}/{len(commands())}] {command}", flush=True)
        begun = time.monotonic()
        words = shlex.split(command)
        done = subprocess.run([sys.executable, *words[1:]], cwd=HERE.parent, check=False)
        failed += done.returncode != 0
        print(f"    {'done' if done.returncode == 0 else 'FAILED'} in {(time.monotonic() - begun) / 60:.1f} minutes")
    return failed
