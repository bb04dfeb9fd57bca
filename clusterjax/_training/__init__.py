"""Training: one loop, the pre-training on texts, and the texts."""
