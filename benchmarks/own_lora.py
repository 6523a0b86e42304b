"""Clipped sum / plain gradient, LoRA beside a frozen encoder."""

from typing import Any

from benchmarks.own_models import compare_plain


def run() -> dict[str, Any]:
    """Goal: at most 1.1."""
    return compare_plain("encoder_lora", 1.1)
