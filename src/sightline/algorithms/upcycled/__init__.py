"""Upcycled-FL: every second round is free; the wrapper and its convergence constants."""
