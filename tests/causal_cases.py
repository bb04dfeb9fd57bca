"""A small causal network whose tokens are letters, for the tests of predictions of the next token."""

import functools
from types import SimpleNamespace

from flax import nnx

from clusterjax import probe
from tests.probe_cases import drawn, sizes_like


WORDS = 26


class Letters:
    """A tokenizer whose tokens are the letters from a to z; it merges "ab" into the one token z."""

    def __call__(self, texts, **options):
        return {"input_ids": [[ord(letter) - ord("a") for letter in text.replace("ab", "z")] for text in texts]}

    def num_special_tokens_to_add(self):
        return 0

    def decode(self, ids):
        return "".join(chr(ord("a") + number) for number in ids)


@functools.cache
def causal_network(max_positions):
    sizes = sizes_like(
        "llama", vocab_size=WORDS, hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=2, max_positions=max_positions, tied=False, spread=None,
    )  # fmt: skip
    return drawn(probe.Network(sizes, nnx.Rngs(0), head=True), 0.6)


def causal_model(max_positions=40):
    model = probe.Model(causal_network(max_positions), SimpleNamespace(), "letters")
    model.__dict__["tokenizer"] = Letters()
    return model
