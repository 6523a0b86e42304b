"""Compiled code of local training and its noise: found, tried out, and never required."""
