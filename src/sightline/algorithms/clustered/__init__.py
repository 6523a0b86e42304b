"""Clustered training: R-DPCFL, IFCA, oracle clusters, and the mixture model over first updates."""
