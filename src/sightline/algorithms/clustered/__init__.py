"""Clustered training: R-DPCFL, IFCA, oracle clusters and MR-MTL, the mixture over first updates."""
