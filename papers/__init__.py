"""The papers' experiments; local training takes its paths by rule, so that what is kept can be compared bit by bit."""

import os

os.environ.setdefault("SIGHTLINE_PATHS", "rule")
