"""Processes that a test interrupts."""

import signal


def heeds_interrupts() -> None:
    """In the child, before it starts: a test run in the background ignores interrupts, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
