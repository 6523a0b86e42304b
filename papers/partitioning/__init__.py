"""Dong, Chen and Ozgur run again: figures 1 to 8, tables 1 and 2, section 4.2."""
