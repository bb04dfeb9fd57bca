"""What all figures share: what an experiment is, its verdict and its record, the registry, and how it is run."""
