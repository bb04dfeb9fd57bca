"""Canonical networks: traces and measures of each family, the blocks of a Transformer, the shipped classifier."""

import tempfile
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import clusterjax as cjx
from clusterjax import probe, sentiment, transformer

from ..helpers import normal
from ..probe_cases import ALBERT, BERT, GPT2, IDS, LLAMA, MASK, SHARED, T5, tensors_of, write
from .register import golden


# --- networks with random weights, read from a folder


@cache
def network(kind):
    """A tiny network in float64; weights are small, so that a layer turns tokens a little."""
    config, parts = {
        "albert": (SHARED, {"head": True}), "groups": (ALBERT, {}), "bert": (BERT, {"head": True}), "gpt2": (GPT2, {}),
        "t5": (T5, {}), "llama": (LLAMA, {}),
    }[kind]  # fmt: skip
    tensors = tensors_of(config, **parts)
    if kind == "albert":
        tensors = {name: array if "norm" in name.lower() else 0.4 * array for name, array in tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        return probe.load(write(Path(folder) / kind, config, tensors), dtype=jnp.float64)


TEXTS = probe.Encoded(
    np.random.default_rng(8).integers(1, 30, (4, 8)), np.arange(8)[None, :] < np.array([8, 5, 7, 5])[:, None]
)


def traced(kind, *, words=True):
    """Levels, attention and, for networks with a head, scores of the first text; padding is zero."""
    model, ids, mask = network(kind), IDS[:2, :6], MASK[:2, :6]
    found = probe.trace(model, ids, mask)
    there = jnp.asarray(mask)
    arrays = {
        "hidden": jnp.where(there[:, None, :, None], found.hidden, 0)[..., ::2],
        "attention": jnp.where(there[:, None, None, :, None], found.attention, 0),
    }
    return arrays | ({"scores": model.logits(found.hidden[:1, -1])[..., ::3]} if words else {})


@golden()
def trace_of_albert():
    return traced("albert")


@golden()
def trace_of_albert_with_groups():
    return traced("groups", words=False)


@golden()
def trace_of_bert():
    return traced("bert")


@golden()
def trace_of_gpt2():
    return traced("gpt2")


@golden()
def trace_of_t5():
    return traced("t5", words=False)


@golden()
def trace_of_llama():
    return traced("llama")


# Twelve layers in float32, each of which multiplies the rounding errors of the last one.
@golden(float32=2e-4)
def trace_of_the_albert_of_the_package():
    model = probe.load()
    texts = probe.encode(model, probe.bundled_texts()[:2], length=12)
    found = probe.trace(model, texts.token_ids, texts.mask)
    cosines = jax.vmap(jax.vmap(cjx.pairwise_cosine))(found.hidden)
    return {
        "ids": texts.token_ids, "hidden": found.hidden[0, ::4, ::4, ::8], "cosines": cosines[0, ::3, 0],
        "attention": found.attention[0, ::6, :, ::4], "scores": model.logits(found.hidden[:1, -1])[0, ::4, ::256],
    }  # fmt: skip


# --- measures


def means(averages):
    """The means over texts, and the standard deviations between them."""
    return {
        f"{name}: {part}": getattr(average, part) for name, average in averages.items() for part in ("mean", "spread")
    }


@golden()
def similarity_of_levels():
    found = {}
    for kind in ("albert", "gpt2"):
        shape = probe.similarity_histograms(network(kind), TEXTS, bins=8, quantiles=(0.25, 0.5))
        names = ("density", "quantiles", "cosine", "near_mass", "effective_rank", "num_clusters")
        found |= means({f"{kind}: {name}": getattr(shape, name) for name in names})
    first = probe.first_token(network("gpt2"), TEXTS)
    return found | means({name: getattr(first, name) for name in ("cosine", "cosine_of_others", "ratio")})


@golden()
def measures_of_heads():
    found = {}
    for kind in ("albert", "gpt2"):
        model = network(kind)
        heads = probe.head_correlations(model, TEXTS, replicates=4, key=jr.key(2))
        sinks = probe.attention_sinks(model, TEXTS, special={})
        places = probe.position_heads(model, TEXTS, separators={"odd": (3, 5)})
        averages = {
            "correlation": heads.correlation,
            "sink": sinks.excess["first"],
            "causal": sinks.causal_excess["first"],
        }
        averages |= {f"position {name}": average for name, average in places.excess.items()}
        found |= {f"{kind}: {name}": array for name, array in means(averages).items()}
        found |= {f"{kind}: resampled": heads.resampled[:2], f"{kind}: clusters": heads.clusters.labels}
    return found


@golden()
def spectra_of_heads():
    """Complex pairs are compared by real part and absolute imaginary part."""
    cases = ("attractive", "repulsive", "rotating", "neutral")
    found = {}
    for kind in ("albert", "t5", "llama"):
        spectra, signs = probe.value_spectra(network(kind)), probe.head_signs(network(kind))
        found |= {
            f"{kind}: value": np.stack([spectra.value.real, np.abs(spectra.value.imag)]),
            f"{kind}: form": spectra.query_key, f"{kind}: beta": spectra.beta,
            f"{kind}: case": np.vectorize(cases.index)(signs.case),
            f"{kind}: counts": np.array(list(probe.parameter_counts(network(kind)))),
        }  # fmt: skip
    return found


@golden()
def losses_and_knock_outs():
    gpt2 = network("gpt2")
    variants = {
        "whole": gpt2, "window": probe.with_mask(gpt2, cjx.WindowMask(2, causal=True)),
        "without a head": probe.without(gpt2, "attention", layer=1, head=0),
        "without feed-forward": probe.without_feed_forward(gpt2),
    }  # fmt: skip
    return {name: probe.token_losses(model, TEXTS) for name, model in variants.items()}


@golden(float64=1e-6)  # the fit ends where time and beta change by less than a tolerance
def bridge_to_particles():
    model = network("albert")
    found = probe.bridge(model, TEXTS, fit_steps=2, steps_per_layer=2)
    curves = {name: average.mean for name, average in found.curves.items()} | {"network": found.network.mean}
    field = probe.particle_field(model, found.radius)
    velocity = field(0.0, cjx.Sphere().retract(normal(1, 6, 12)))
    return curves | {"time, beta": [found.time_per_layer, found.beta], "losses": found.losses, "velocity": velocity}


# --- blocks, streams and language models with weights of NumPy


D, HEADS, K, HIDDEN, WORDS = 8, 2, 4, 10, 12
WORD_IDS = jnp.asarray([3, 1, 4, 1, 5, 9])
PRESENT = jnp.asarray([True, True, False, True, True, True])


def block_of(seed, residual, mask, relative=None):
    attention = transformer.MultiHeadAttention(
        *normal(seed, 3, HEADS, D, K), normal(seed + 1, HEADS, K, D), jnp.asarray([0.5, 1.0]), mask=mask,
        relative=relative,
    )  # fmt: skip
    forward = transformer.FeedForward(
        normal(seed + 2, D, HIDDEN), normal(seed + 3, HIDDEN, D), normal(seed + 4, HIDDEN), normal(seed + 5, D),
        jax.nn.gelu,
    )  # fmt: skip
    norms = tuple(transformer.LayerNorm(*normal(seed + 6 + part, 2, D), 1e-3) for part in (0, 1))
    return transformer.Block(attention, forward, norms, residual)


@cache
def language_model():
    blocks = [block_of(seed, transformer.PreNorm(), cjx.CausalMask()) for seed in (20, 40)]
    stack = transformer.Transformer.of(blocks, norm=transformer.LayerNorm(*normal(60, 2, D), 1e-3))
    return transformer.LanguageModel(normal(61, WORDS, D), stack, transformer.LearnedPositions(normal(62, 16, D)))


@golden()
def blocks_of_a_transformer():
    x = normal(63, 6, D)
    relative = transformer.RelativePositions(*normal(64, 2, 5, K))
    blocks = {
        "post": block_of(70, transformer.PostNorm(), cjx.FullMask()),
        "pre, relative": block_of(70, transformer.PreNorm(), cjx.CausalMask(), relative),
        "rotary, window": block_of(70, transformer.PostNorm(), cjx.WindowMask(2), transformer.RotaryPositions(K, 30.0)),
    }
    found = {
        f"{name}: {gaps}": block(x, PRESENT if gaps else None) for name, block in blocks.items() for gaps in (0, 1)
    }
    heads = blocks["pre, relative"].attention.heads(x)
    return found | {"weights": heads.weights, "updates": heads.updates, "sines": transformer.sinusoidal_positions(3, 6)}


@golden()
def stream_of_a_language_model():
    model = language_model()
    stream = transformer.residual_stream(model, WORD_IDS)
    parts = {name: getattr(stream, name) for name in ("stream", "heads", "feed_forward", "biases", "weights", "share")}
    return parts | {"lens": transformer.logit_lens(model, WORD_IDS), "next": model.next_token(WORD_IDS, 0.7)}


@golden()
def training_of_a_language_model():
    """The loss and its gradient, and the predictions of the levels."""
    rows = jnp.asarray(np.random.default_rng(6).integers(0, WORDS, (3, 6)))
    mean = lambda model: transformer.language_loss(model, rows)[0]
    loss, slope = eqx.filter_value_and_grad(mean)(language_model())
    found = {"mean loss": loss, "gradient": slope.embedding, "scores": language_model()(WORD_IDS)}
    profile = transformer.depth_profile(language_model(), np.asarray(rows))
    memory = transformer.key_value_memory(language_model(), np.asarray(rows), layer=1, top=2, words=3)
    found |= {name: getattr(profile, name) for name in ("cosine", "near", "loss", "sink")}
    return found | {"fired": memory.activation, "places": memory.position, "promoted": memory.promoted}


@golden()
def fields_of_a_transformer():
    """The flows of each scheme of norms, and the field of a block."""
    x = normal(90, 6, D)
    schemes = {
        "post": transformer.PostLN(), "pre": transformer.PreLN(), "peri": transformer.PeriLN(),
        "nGPT": transformer.NormalisedGPT(0.7), "root": transformer.RootScaled(),
    }  # fmt: skip
    attention = cjx.SoftmaxAttention(2.0, mask=cjx.CausalMask())
    found = {
        name: transformer.NormalisationField(attention, scheme, normal(91, D, D))(0.5, x)
        for name, scheme in schemes.items()
    }
    block = block_of(70, transformer.PreNorm(), cjx.CausalMask())
    return found | {"block": transformer.as_field(block)(0.0, x), "forms": transformer.query_key_forms(block.attention)}


# Four layers in float32, each of which multiplies the rounding errors of the last one.
@golden(float32=2e-4)
def language_model_of_the_package():
    model = transformer.load()
    ids = jnp.asarray([5, 80, 300, 17, 1200, 42])
    return {"scores": model(ids)[:, ::64], "losses": transformer.cross_entropy(model(ids)[:-1], ids[1:])}


# --- the classifier of the package


@golden(float32=1e-4)
def sentiment_of_reviews():
    """The ids of the words, of the leaders and of their followers, and the contribution of each word to the logit."""
    fitted = sentiment.load()
    place = lambda words: [fitted.vocabulary.ids[word] for word in words]
    found = sentiment.explain(fitted, "A wonderful film: the acting is superb, though the script is boring at times.")
    texts = ("Awful script, terrible acting, and a pointless ending.", "I loved every minute of it.", "")
    many = fitted.predict(texts)
    return {
        "logit": found.logit, "probability": found.probability, "words": place(found.words), "counts": found.counts,
        "contributions": found.contributions, "scores": found.scores,
        "leaders": place([leader.word for leader in found.leaders]),
        "since": [leader.since for leader in found.leaders], "distance": [leader.distance for leader in found.leaders],
        "followers": place([word for leader in found.leaders for word in leader.followers]),
        "probabilities": [one["probability"] for one in many],
        "leaders of many": place([word for one in many for word in one["leaders"]]),
    }  # fmt: skip
