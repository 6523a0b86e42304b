"""The papers' experiments. Local training uses fixed paths, so that stored results can be compared bit by bit."""

import os

os.environ.setdefault("SIGHTLINE_PATHS", "rule")
