"""Optional compiled kernels for local training and its noise: found, probed, never required."""
