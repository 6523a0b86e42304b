"""Clipped sum / plain gradient, transformer encoder of width 128."""

from typing import Any

from benchmarks.own_models import compare_plain


def run() -> dict[str, Any]:
    """Goal: at most 1.35."""
    return compare_plain("encoder_128", 1.35)
