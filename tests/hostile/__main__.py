"""`python -m tests.hostile 10000 [SEED]`: try 10,000 mutated experiment files and count what became of them."""

import json
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from tests.hostile.mutate import corpus, mutations
from tests.hostile.outcome import building, reading

MOST_MEMORY = 12 << 30


def main() -> int:
    """Count; a crash is printed with its text and makes the exit code 1."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("error")
    read: Counter[str] = Counter()
    built: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        for text in mutations(corpus(), count, seed):
            what, experiment = reading(path, text)
            read[what] += 1
            made = "" if experiment is None else building(experiment)
            built[made] += bool(made)
            if "crash" in what + made or made == "slow":
                print(what, made, "\n", text[:3000], file=sys.stderr)
    built.pop("", None)
    print(json.dumps({"read": dict(read.most_common()), "built": dict(built.most_common())}))
    return int(any(what.startswith("crash") or what == "slow" for what in (*read, *built)))


if __name__ == "__main__":
    sys.exit(main())
