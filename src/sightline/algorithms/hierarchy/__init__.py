"""Hierarchies: H2FDP and its baselines, and adaptive control."""
