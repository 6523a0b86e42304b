"""DP-OGL and DP-OGL+ (Kiani et al.) run again: figures 3, 4 and 5."""
