"""Damages the files of every loader in ways that a seed decides, and counts the outcomes."""
