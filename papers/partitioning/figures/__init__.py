"""Figures 1 to 8 of the partitioning paper: accounting, no training."""
