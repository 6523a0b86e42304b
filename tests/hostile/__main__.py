"""`python -m tests.hostile 10000 [SEED]`: so many mutated experiment files, and what became of them."""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.hostile.mutate import corpus, mutations
from tests.hostile.outcome import outcome


def main() -> int:
    """Count; a crash is printed with its text and makes the exit code 1."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        for text in mutations(corpus(), count, seed):
            what = outcome(path, text)
            found[what] += 1
            if what.startswith("crash"):
                print(what, "\n", text[:2000], file=sys.stderr)
    print(json.dumps(dict(found.most_common())))
    return int(any(what.startswith("crash") for what in found))


if __name__ == "__main__":
    sys.exit(main())
