"""Reference numbers that anybody can run, with epsilons recomputed and audited: `python -m benchmarks.scoreboard`."""
