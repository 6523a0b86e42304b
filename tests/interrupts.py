"""Processes that a test interrupts."""

import os
import signal
import subprocess
import sys

STOPPING = """
import os, signal, sys
from sightline.apps.cli.main import run_arguments
from sightline.engine.record import RunRecord
left, add_round = iter(range(int(sys.argv[1]) - 1, -1, -1)), RunRecord.add_round
def stopping(*row):
    add_round(*row)
    if next(left, None) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
RunRecord.add_round = stopping
sys.exit(run_arguments(sys.argv[2:]))
"""


def heeds_interrupts() -> None:
    """In the child, before it starts: a test run in the background ignores interrupts, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stopped_after(rounds: int, words: list[str]) -> subprocess.Popen[str]:
    """Start a process of the command line that waits after `rounds` rounds."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING, str(rounds), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.communicate()
    return process
