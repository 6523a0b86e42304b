"""Clipped sum / plain gradient, transformer encoder of width 32."""

from typing import Any

from benchmarks.own_models import compare_plain


def run() -> dict[str, Any]:
    """Goal: at most 2."""
    return compare_plain("encoder_32", 2)
