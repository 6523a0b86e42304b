"""Correlated noise beside independent, Poisson and balanced, at equal epsilon, on real data."""
