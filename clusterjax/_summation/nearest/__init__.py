"""Hardmax in the plane: the search for the tokens of largest score in a bounding-volume hierarchy."""
