"""Fast paths of local training and per-example clipping, each equal to the readable reference."""
