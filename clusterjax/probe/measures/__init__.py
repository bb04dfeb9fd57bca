"""Measurements on the hidden states and the attention of a network, streamed over many texts."""
