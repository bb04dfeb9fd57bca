"""One file for each figure: parameters, measurement, claims, picture."""
