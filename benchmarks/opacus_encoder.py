"""Opacus' best mode / ours, transformer encoder of width 128."""

from typing import Any

from benchmarks.own_models import compare_opacus


def run() -> dict[str, Any]:
    """Goal: at least 1.3."""
    return compare_opacus("encoder_128", 1.3)
