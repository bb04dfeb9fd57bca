"""The networks: ALBERT and T5 in Flax, their files, tokenizers, batches and pre-training."""
