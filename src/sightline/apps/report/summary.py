"""The numbers of a run for scripts, as `sightline run --json` and `sightline report --json` print them."""

from typing import Any

from sightline.apps.report.page import REPORT
from sightline.apps.report.run_view import RunView
from sightline.engine.record import replace_nonfinite

DECISIONS = ("tau", "devices_trusted", "devices_untrusted", "step_size")
"""What adaptive control decides before every round."""


def summarise_run(run: RunView) -> dict[str, Any]:
    """Return the numbers of a run as plain values; None stands for infinite or unknown.

    Guarantees: epsilon counts every release in the ledger, including those of an interrupted round.
    """
    # These names are an interface for scripts: add to them, never rename.
    facts = ("status", "status_reason", "delta", "unit", "adjacency", "noise_multiplier", "noise_source", "seconds",
             "threads", "mkl_cbwr", "cpu_capability", "paths", "workers")  # fmt: skip
    metrics = ("test_accuracy", "test_loss", "client_accuracy_mean", "client_accuracy_decile",
               "client_accuracy_worst", "client_worst_examples")  # fmt: skip
    summary: dict[str, Any] = replace_nonfinite(
        {
            "run_dir": str(run.directory),
            "report": str(run.directory / REPORT),
            "rounds_done": run.rounds_done,
            **{name: run.last(name) for name in metrics},
            **_summarise_metrics(run),
            "epsilon": run.epsilon,
            "observers": run.spent,
            **({"together": run.together} if run.together is not None else {}),
            "trusted": run.trusted,
            **{name: run.fact(name) for name in facts},
            "stopped": run.fact("status_reason") or None,
            "notes": run.fact("notes", []),
            "releases": len(run.ledger),
            "rejected_updates": int(run.total("rejected")),
            "uplink_floats": run.total("uplink_floats"),
            **{name: run.total(name) for name in ("energy_joule", "delay_seconds") if run.fact("resources")},
            **_summarise_clusters(run),
            **({"control": {name: run.series(name) for name in DECISIONS}} if run.fact("control") else {}),
        }
    )
    return summary


def _summarise_metrics(run: RunView) -> dict[str, Any]:
    """Return the task, the main metric, all metrics on the test set, and the clients' main metric."""
    main = run.metric
    own = {} if main.name == "accuracy" else {main.client_key(which): None for which in ("mean", "decile", "worst")}
    return {
        "task": run.fact("task", "classification"),
        "metric": main.name,
        "metrics": {metric.name: run.last(metric.test_key) for metric in run.metrics},
        **{name: run.last(name) for name in own},
    }


def _summarise_clusters(run: RunView) -> dict[str, Any]:
    """Return the run's clusters; purity and the minority need the true clusters, which only simulations know."""
    facts = run.fact("clusters")
    if facts is None:
        return {}
    last = (run.rounds[-1].get("clusters") if run.rounds else None) or {}
    own = {"purity": last.get("purity"), "minority_accuracy": run.last("minority_accuracy")}
    if run.metric.name != "accuracy":
        own[f"minority_{run.metric.name}"] = run.last(f"minority_{run.metric.name}")
    return {"clusters": {"count": facts["count"], "mss": facts["mss"]} | own}
