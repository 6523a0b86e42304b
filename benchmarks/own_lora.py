"""Clipped sum / plain gradient, peft's LoRA beside a frozen BERT."""

from typing import Any

from benchmarks.own_models import compare_plain


def run() -> dict[str, Any]:
    """Goal: at most 1.1."""
    return compare_plain("bert_lora", 1.1)
