"""Planted faults: one-line changes of the package, each of which some test must catch. `make mutants` runs them all."""
