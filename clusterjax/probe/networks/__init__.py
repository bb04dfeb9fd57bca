"""The networks in Flax, all behind one interface: their files, tokenizers, batches, and the pre-training of ALBERT."""
