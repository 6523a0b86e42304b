"""Clipped sum / plain gradient, BERT of transformers."""

from typing import Any

from benchmarks.own_models import compare_plain


def run() -> dict[str, Any]:
    """Goal: at most 1.35."""
    return compare_plain("bert", 1.35)
