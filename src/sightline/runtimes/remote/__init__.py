"""Clients that are elsewhere: what travels, what is asked, how answers are checked, the client's side of a round."""
