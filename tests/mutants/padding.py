"""Faults of where padding stands, and of the mask that heads share."""

from tests.mutants.mutant import Mutant


_FILE = "tests/probe/test_padding.py::"
_PADDING = (_FILE + "test_hidden_states_and_attention_are_those_of_the_text_alone[gpt2]",)
_HEADS = ("tests/probe/test_heads.py",)

PADDING = (
    Mutant(
        "padding-is-a-place",
        "clusterjax/_base/padding.py",
        "    if present is None:\n",
        "    if True:\n",
        _PADDING,
    ),
    Mutant(
        "traced-padding-is-a-place",
        "clusterjax/_base/padding.py",
        "    order = jnp.argsort(~present, axis=-1, stable=True)\n",
        "    order = jnp.broadcast_to(jnp.arange(present.shape[-1]), present.shape)\n",
        (_FILE + "test_a_network_called_by_itself[bert]",),
    ),
    Mutant(
        "words-are-not-put-back",
        "clusterjax/probe/networks/block.py",
        "        weights, kept = _arranged(weights, back, *axes),",
        "        weights, kept = _arranged(weights, order, *axes),",
        _PADDING,
    ),
    Mutant(
        "a-lens-forgets-what-is-present",
        "clusterjax/probe/networks/view.py",
        "        return x[0] if present is None else blank(x, present[None])[0]",
        "        return x[0]",
        (_FILE + "test_one_text_taken_apart[albert]",),
    ),
    Mutant(
        "heads-are-compared-with-their-mask",
        "clusterjax/probe/measures/heads.py",
        "    return pairs / jnp.maximum(jnp.sum(pairs, axis=2, keepdims=True), 1)",
        "    return pairs / jnp.maximum(jnp.sum(pairs, axis=(1, 2), keepdims=True), 1)",
        _HEADS,
    ),
    Mutant(
        "all-layers-have-the-mask-of-none",
        "clusterjax/probe/networks/block.py",
        "        rule = block.allowed(places, places, context)",
        "        rule = None",
        _HEADS,
    ),
    Mutant(
        "a-decoder-is-tied-whatever-its-file-holds",
        "clusterjax/probe/networks/weights.py",
        "    if not differ:\n",
        "    if True:\n",
        ("tests/probe/test_parity.py",),
    ),
    Mutant(
        "a-mask-that-looks-ahead-passes",
        "clusterjax/probe/networks/block.py",
        "np.triu(np.asarray(context.allowed), 1).any()",
        "False",
        ("tests/probe/test_continuation.py",),
    ),
)
