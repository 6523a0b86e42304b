"""Pages over a run of 100,000 rounds, 200,000 releases: processor seconds of each / those allowed; the worst counts."""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import line

ROUNDS = 100_000
ALLOWED = {
    "/": 0.2,
    "/ledger?run=long": 0.5,
    "/ledger?run=long&start=199900": 0.5,
    "/ledger?run=long&round=77777": 0.5,
    "/ledger?run=long&q=noisy&start=150000": 1.0,
    "/run?run=long": 0.2,
    "/run?run=long&wait=1": 20.0,
    "/run?run=long&part=page": 0.3,
    "/sight?run=long&q=client-7&wait=1": 5.0,
}
"""The first look at the report reads and checks the whole ledger; after that it is in memory."""


def run() -> dict[str, Any]:
    """Each page once, in this order."""
    from tests.report.report_runs import quickstart
    from tests.serve.serve_asking import asking, site_of

    with tempfile.TemporaryDirectory() as place:
        quickstart(Path(place) / "long", rounds=ROUNDS)
        ask, seconds = asking(site_of(Path(place))), {}
        for target in ALLOWED:
            begun = time.process_time()
            answer = ask(target)
            seconds[target] = time.process_time() - begun
            if answer.status != 200:
                raise RuntimeError(f"{target}: {answer.status}")
    worst = max(seconds[target] / allowed for target, allowed in ALLOWED.items())
    return line("serve_long", worst, 1, at_least=False, seconds={k: round(v, 3) for k, v in seconds.items()})
