"""Hardmax in the plane: the search for the tokens with the largest score in a bounding-volume hierarchy."""
