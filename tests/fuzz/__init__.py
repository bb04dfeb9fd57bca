"""Damages the files of every loader in ways that a seed decides, and sorts what comes of it."""
