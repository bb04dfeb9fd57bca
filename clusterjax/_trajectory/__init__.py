"""The result of a run: the saved tokens, the tokens in between, its file and its table."""
