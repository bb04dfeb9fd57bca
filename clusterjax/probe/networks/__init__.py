"""Networks in Flax with a common interface: their files, tokenizers, batches, and the pre-training of ALBERT."""
