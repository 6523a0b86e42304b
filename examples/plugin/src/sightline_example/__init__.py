"""An algorithm, a mechanism, a topology and a sampler for Sightline."""
