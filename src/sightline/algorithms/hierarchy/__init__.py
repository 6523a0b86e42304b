"""Hierarchical algorithms: H2FDP with its baselines, and adaptive control."""
