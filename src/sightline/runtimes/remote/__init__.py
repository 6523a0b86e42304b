"""Remote clients: wire messages, questions, checks of the answers, and the client's side of a round."""
