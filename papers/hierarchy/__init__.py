"""Figures 4 to 10 of the hierarchy paper."""
