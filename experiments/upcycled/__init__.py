"""Upcycled-FL (Yin et al. 2024) run again: tables 1, 3, 4, 5 and the private figures 3 and 4."""
