"""Overlapping groups: DP-OGL and DP-OGL+."""
