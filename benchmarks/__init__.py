"""Ratios to peers and to the bare machine, measured in one run."""
