"""How the command speaks: a line at a time, at once."""


def say(line: str) -> None:
    """Print a line."""
    print(line, flush=True)
