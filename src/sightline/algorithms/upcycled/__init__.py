"""Upcycled-FL: every second round is free."""
