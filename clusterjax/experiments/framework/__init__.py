"""The framework of all figures: experiments, verdicts, records, the list of the figures, and `reproduce`."""
