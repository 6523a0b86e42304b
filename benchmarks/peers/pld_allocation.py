"""PLD_accounting on the allocation case, once per line on stdin."""

import json
import sys
import time

import PLD_accounting

for _ in sys.stdin:
    begun = time.perf_counter()
    found = PLD_accounting.gaussian_allocation_epsilon_range(
        delta=1e-5, sigma=1.0, num_steps=1000, num_selected=50, num_epochs=1
    )
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "epsilon": max(float(end) for end in found)}), flush=True)
