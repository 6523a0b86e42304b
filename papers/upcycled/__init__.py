"""Upcycled-FL (Yin et al. 2024) run again: Tables 1 to 5, Figures 2 to 9."""
