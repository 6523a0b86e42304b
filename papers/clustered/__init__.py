"""R-DPCFL (clustered, appendix) run again: figures 8, 10, 11, 12, 13 and 14."""
