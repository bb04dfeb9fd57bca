"""What a run returns: the saved tokens, tokens in between, its file and its table."""
