"""Hierarchies: H2FDP and its baselines, adaptive control, and the convergence bound."""
