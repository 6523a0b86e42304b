"""Clients that are elsewhere: what travels, what is asked, how answers are checked, and the client's side of a round."""
