"""Plain NumPy double loops, one for each formula; they share no code with the package."""
