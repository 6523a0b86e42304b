"""Experiments on Flower: its simulation engine, or a SuperLink with SuperNodes. Needs `sightline[flower]`."""
