"""`python -m benchmarks`: run the named benchmarks, or all; one line each; exit 1 when a goal is missed."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from benchmarks.measure import Absent
from benchmarks.page import keep_results, write_page
from sightline.training.machine import describe_processor

BENCHMARKS = {
    "dpsgd_cnn": "private step / the fastest plain step (channels_last), 28,938-parameter CNN, batch 32, 256",
    "dpsgd_mlp": "private step / the fastest plain step, MLP 784-196-10, batch 32, 256",
    "opacus_cnn": "Opacus' best mode / ours, CNN, batch 32, 256",
    "opacus_mlp": "Opacus' best mode / ours, MLP, batch 32, 256",
    "own_encoder": "clipped sum / plain gradient, a transformer encoder of a user's own, width 128",
    "own_encoder_small": "the same, width 32",
    "own_lora": "clipped sum / plain gradient, peft's LoRA beside a frozen BERT",
    "own_bert": "clipped sum / plain gradient, BERT of transformers",
    "opacus_encoder": "Opacus' best mode / ours, the encoder of width 128",
    "clients_linear": "loop over modules / stacked, 30 clients",
    "round_pfl_small": "pfl / ours, a round of central-DP FedAvg, 26,010 parameters",
    "round_pfl_cnn": "pfl / ours, a round of central-DP FedAvg, 1,626,442 parameters",
    "round_pfl_cnn_bf16": "the same, both with bf16 where it helps",
    "round_flower_small": "Flower simulation / ours, the small round",
    "round_limit": "our round / the bare matrix work of the same FLOPs",
    "start_up": "seconds from the start of `sightline run` to its first round, quickstart",
    "mkl_mode": "training with MKL's reproducible mode on / off; products and convolutions beside it",
    "load": "bytes that one of many tiny rounds leaves in memory",
    "memory": "peak memory of 1,000 clients x 1.6 M parameters, cohort 50",
    "split": "a private step by 4 parts / of the whole model; a client's memory beside it",
    "accounting_allocation": "PLD_accounting / ours, random allocation",
    "accounting_poisson": "dp_accounting PLD / ours, Poisson",
    "accounting_speed": "processor seconds / allowed: golden rows, a million steps, a calibration",
    "scale": "processor seconds of a round's sampling, ledger and epsilon / allowed: a million clients",
    "groups_scale": "seconds / allowed: all pairs of 10,000 workers",
    "integer_noise": "a noisy sum in integers / in floats, 50 clients, 26,010 parameters",
    "correlated_noise": "a round's 1.6 million numbers of noise, correlated by 10 bands or by buffers / independent",
    "crypto_noise": "a million numbers from AES-256-CTR / from Philox: the worst kind of noise vector",
    "serve_long": "processor seconds / allowed: pages over a run of 100,000 rounds",
}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*BENCHMARKS, "growth"]))
    parser.add_argument("--json", action="store_true", help="one JSON object per line and nothing else")
    parser.add_argument("--page", action="store_true", help="keep the results and write docs/performance.md's table")
    parser.add_argument("--page-only", action="store_true", help="write the table from the results that are kept")
    chosen = parser.parse_args()
    if chosen.page_only:
        write_page(BENCHMARKS)
        return 0
    for name in chosen.names:
        if name not in BENCHMARKS and name != "growth":
            parser.error(f"no benchmark {name!r}; known: {', '.join([*BENCHMARKS, 'growth'])}")
    if not chosen.json:
        print(describe_processor(), flush=True)
    missed, results = False, {}
    for name in chosen.names or BENCHMARKS:
        result = measured(name)
        missed |= result.get("ok") is False
        results[name] = result
        print(json.dumps(result) if chosen.json else told(result), flush=True)
    if chosen.page:
        keep_results(results)
        write_page(BENCHMARKS)
    return int(missed)


def measured(name: str) -> dict[str, Any]:
    """The result of one benchmark, or why there is none; what it prints on the way is not on stdout."""
    try:
        with redirect_stdout(sys.stderr):
            result: dict[str, Any] = import_module(f"benchmarks.{name}").run()
        return result
    except Absent as reason:
        return {"name": name, "skipped": str(reason)}


def told(result: dict[str, Any]) -> str:
    """One line for a person."""
    if "skipped" in result:
        return f"{result['name']:24} skipped: {result['skipped']}"
    verdict = "ok" if result.get("ok") else "MISSED"
    rest = {key: value for key, value in result.items() if key not in ("name", "ratio", "goal", "ok")}
    return (
        f"{result['name']:24} {result.get('ratio', '-'):>8}  goal {result.get('goal', '-'):8} {verdict:7} {rest or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
