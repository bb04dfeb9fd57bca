"""The language model of the package measured as SmolLM2-135M-Instruct (Q4_1) is, from arrays of its forward pass.

Levels are those of its stream, before the last norm; a text begins with whatever word its passage begins with, as the
texts of its training began anywhere.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ... import probe, transformer
from ...probe.measures.first_token import OF_FIRST
from ...probe.measures.position_heads import of_layer, position_heads_of
from ...probe.measures.tally import average_of
from ..framework.causal import ids_of_words
from ..framework.passages import articles_of, passages
from ..framework.starts import keys_of, seed_of
from .seen import Seen, seen_of


def own_model(seed: int, draws: int, mark: str, marks: str) -> tuple[Seen, Seen, tuple[Seen, ...], int]:
    """The trained model on the passages of the package, on their words in random order, and as many models as it might
    have started; each a `Seen`, and how many tokens a text has at most."""
    report = transformer.bundled_training()["report"]
    recipe, tokenizer = transformer.LanguageRecipe(**report["recipe"]), transformer.load_tokenizer()
    texts = probe.Encoded(*passages(recipe.length))
    separators = {mark: ids_of_words([tokenizer.decode([i]) for i in range(recipe.words)], marks)}
    articles = articles_of(probe.bundled_texts())
    of = lambda model, texts: measure_arrays(*run(model, *texts), texts, separators, articles)
    model = transformer.load()
    shuffled = probe.shuffle_tokens(texts, jax.random.key(seed))
    random = tuple(of(recipe.model(seed_of(key)), texts) for key in keys_of(seed, draws))
    return of(model, texts), of(model, shuffled), random, recipe.length


def measure_arrays(
    hidden: np.ndarray, attention: np.ndarray, texts: probe.Encoded, separators: dict[str, Any], articles: np.ndarray
) -> Seen:
    """A `Seen` of hidden states (texts, levels, n, d) and causal attention (texts, layers, heads, n, n)."""
    mask, n = jnp.asarray(texts.mask), texts.mask.shape[1]
    levels = [OF_FIRST(jnp.asarray(level), mask) for level in np.moveaxis(hidden, 1, 0)]
    first = probe.FirstToken(
        *(average_of(np.stack([np.asarray(level[name]) for level in levels], axis=1)) for name in levels[0])
    )
    of = of_layer(*texts, separators)
    layers = [of(mask, jnp.asarray(layer), mask)["mass"] for layer in np.moveaxis(attention, 1, 0)]
    allowed = np.broadcast_to(np.tri(n, dtype=bool), (attention.shape[1], n, n))
    heads = position_heads_of(allowed, texts, average_of(np.stack(layers, axis=1)), separators)
    return seen_of(first, heads, texts.mask.sum(axis=1), articles)


def run(model: transformer.LanguageModel, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stream before the blocks and after each, and the attention of each; rows of padding are zero."""
    hidden, weights = _run(model, jnp.asarray(ids), jnp.asarray(mask))
    rows = mask[:, None, None, :, None]
    return np.asarray(hidden), np.where(rows, np.asarray(weights), 0)


@eqx.filter_jit
def _run(model: transformer.LanguageModel, ids: Int[Array, "texts n"], mask: Bool[Array, "texts n"]) -> Any:
    def of_text(ids: Array, present: Array) -> tuple[Array, Array]:
        def step(block: transformer.Block, x: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
            # What the block itself attends with: read through its first norm.
            weights = block.attention.weights(block.residual.read(block.norms[0], x), present)
            return block(x, present), (x, weights)

        last, (before, weights) = model.stack.scan(step, model.embed(ids))
        return jnp.concatenate([before, last[None]]), weights

    return jax.vmap(of_text)(ids, mask)
