# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A Transformer is a step of a particle system, and its stream is a sum of what everybody wrote
#
# The slides *Transformers, part 2* take a Transformer apart: residual stream, layer norm, feed-forward as a memory,
# positions, the head that turns the last token into words. *Clustering in Transformers* puts it together again as a
# particle system. This notebook does both, with numbers that can be checked by hand, and then with a small language
# model that was trained for it.

# %%
import os
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import clusterjax as cjx
from clusterjax import plot, probe, transformer


SMALL = bool(os.environ.get("SMALL"))
jax.config.update("jax_enable_x64", True)
key = jax.random.key(2017)

# %% [markdown]
# ## Layer norm and positions, by hand
#
# Two examples of the slides: the norm of (2, 4, 6, 8), and the second row of the table of sinusoids in four
# dimensions.

# %%
norm = transformer.LayerNorm.identity(4, epsilon=0.0)
print("LN(2, 4, 6, 8) =", norm(jnp.array([2.0, 4.0, 6.0, 8.0])))
print("PE(1)          =", transformer.sinusoidal_positions(2, 4)[1])

# %% [markdown]
# The norm is a projection: whatever it is given ends on a sphere of radius $\sqrt d$, in the hyperplane of mean zero.
# That is the space on which the particles live.

# %%
x = 5 * jax.random.normal(key, (6, 4)) + 3
print("lengths after the norm:", np.round(jnp.linalg.norm(norm(x), axis=1), 12), " sums:", np.round(norm(x).sum(1), 12))

# %% [markdown]
# ## Three kinds of position
#
# *Sinusoids* are fixed; their inner products depend on the distance of two positions alone, which is how attention can
# see it. A *learned* table, here that of the language model below, need not have this property. *Relative* vectors are
# in the scores themselves. To see what they are for, we train one layer of two heads, with no other knowledge of
# places, to continue texts in which each word is, nine times in ten, the one two places back.

# %%
sinusoids = transformer.sinusoidal_positions(64, 128)
learned = transformer.load().positions.table
fig, axes = plt.subplots(2, 2, figsize=(7.0, 5.4), layout="constrained")
plot.position_table(sinusoids, axes[0, 0])
plot.position_cosines(learned, axes[0, 1])
plot.position_offsets(sinusoids / jnp.linalg.norm(sinusoids, axis=1, keepdims=True), axes[1, 0], label="sinusoids")
plot.position_offsets(learned / jnp.linalg.norm(learned, axis=1, keepdims=True), axes[1, 0], label="learned",
                      colour=plot.OKABE_ITO[1])  # fmt: skip
axes[1, 0].legend(frameon=False)
titles = ("sinusoids", "learned, cosines", "sinusoids and learned", "relative, trained on a toy")
for ax, letter, title in zip(axes.flat, "abcd", titles, strict=True):
    ax.text(0, 1.12, f"({letter}) {title}", transform=ax.transAxes, weight="bold", fontsize=9)

rng = np.random.default_rng(0)
rows = rng.integers(0, 8, (8192, 17))
for place in range(2, 17):
    same = rng.random(len(rows)) < 0.9
    rows[same, place] = rows[same, place - 2]
of_vectors, of_model = jax.random.split(key)
small = transformer.LanguageModel.random(
    of_model, 8, 32, 2, 64, 1, positions=None, dtype=jnp.float32,
    relative=transformer.RelativePositions.random(of_vectors, 6, 16, dtype=jnp.float32),
)  # fmt: skip
params, fixed = eqx.partition(small, eqx.is_inexact_array)
adam = optax.adam(1e-2)


def step(carry, batch):
    params, state = carry
    of = lambda p: transformer.language_loss(eqx.combine(p, fixed), batch)[0]
    loss, gradient = jax.value_and_grad(of)(params)
    updates, state = adam.update(gradient, state, params)
    return (optax.apply_updates(params, updates), state), loss


batches = jnp.asarray(rows).reshape(256, 32, 17)
(params, _), losses = jax.jit(lambda p: jax.lax.scan(step, (p, adam.init(p)), batches))(params)
small = eqx.combine(params, fixed)
attention = small.stack.block(0).attention
x = small.stack.block(0).norms[0](small.embed(jnp.asarray(rows[0])))
queries = jnp.einsum("nd,hdk->hnk", x, attention.query)
plot.relative_positions(attention.relative.keys, axes[1, 1], queries=queries, beta=attention.beta)
plt.show()
same, other = 0.9 + 0.1 / 8, 0.1 / 8  # the chances of the word two places back, and of each other one
best = (15 * -(same * np.log(same) + 7 * other * np.log(other)) + np.log(8)) / 16  # the second word is any
added = attention.beta * jnp.einsum("hnk,rk->hnr", queries, attention.relative.keys)
favourite = np.asarray(added.mean(axis=1))[:, :7].argmax(axis=1) - 6
print(f"loss {losses[0]:.2f} to {losses[-32:].mean():.3f} nats, the least possible {best:.3f}")
print("distance that each head favours:", favourite)

# %% [markdown]
# ## The Eiffel Tower, in exact arithmetic
#
# The slides follow the stream of "Tower": its embedding, what two heads add, then two neurons of the feed-forward
# layer, and the stream behind it. A neuron has a key, which is compared with the stream, and a value, which is added as
# far as the key fits. Of each vector the slides print four entries, and dots for the rest; with fractions the four are
# exact.

# %%
exact = np.vectorize(Fraction)
embedding = exact(["0.4", "0.2", "0.2", "0.1"])
head_1, head_2 = exact(["0.1", "0.2", "0", "0.1"]), exact(["0.2", "0", "0.3", "0"])
tower = embedding + head_1 + head_2
keys = exact([["0.8", "0.1", "0.9", "-0.1"], ["0.1", "0.8", "-0.2", "0.3"]])  # neurons 2847 and 5432
values = exact([["0.9", "0.8", "0.6"], ["0.1", "0.7", "0.05"]])  # Paris, landmark, French culture
fired = exact(["1.2", "0.4"])
features = fired @ values
after = tower + np.array([*exact(["0.1", "0.05"]), features[0], Fraction("0.3")])
decimal = lambda numbers: [float(number) for number in numbers]
print("stream of Tower before the feed-forward:", decimal(tower))
print("the neurons fire with", decimal(fired), "of which the four entries give", decimal(keys @ tower))
print("and so the rest      ", decimal(fired - keys @ tower))
print("Paris, landmark, French culture:", decimal(features))
print("stream of Tower behind it:              ", decimal(after))

# %% [markdown]
# Everything that is printed fits together. The stream is (0.7, 0.4, 0.5, 0.2). The neurons fire with 1.2 and 0.4; the
# entries that can be seen give 1.03 and 0.35 of it, those behind the dots 0.17 and 0.05. What they write is 1.12 for
# Paris, 1.24 for landmark and 0.74 for French culture, exactly. The slides add the first of these in the third entry,
# and 0.1, 0.05 and 0.3 in the others, of which they do not say who writes them: the stream behind the feed-forward
# is (0.8, 0.45, 1.62, 0.5).
#
# (In an encoder, that is. A causal model reads "Eiffel" before "Tower", so that only the second can know of the first.)
#
# ## A language model of our own
#
# It has four layers and was trained by `clusterjax train language-model` for some minutes, mostly on film reviews.

# %%
model, tokenizer = transformer.load(), transformer.load_tokenizer()
report = transformer.bundled_training()["report"]
print(f"{report['parameters'] / 1e6:.2f} million parameters, {report['seconds'] / 60:.0f} minutes on two cores")
print(
    f"held-out loss {report['held-out loss']:.3f} nats; by the word before {report['bigram loss']:.3f}, by frequency "
    f"{report['unigram loss']:.3f}"
)
text = "this is one of the worst films i have ever seen"
ids = jnp.asarray(tokenizer.encode(text, add_special_tokens=False).ids)
words = [tokenizer.id_to_token(int(i)) for i in ids]
likely = np.argsort(-np.asarray(model.next_token(ids)))[:5]
print(f"'{text}' is followed by", [tokenizer.id_to_token(int(i)) for i in likely])
for seed in range(2):
    more = model.extend(ids[:4], 20, key=jax.random.key(seed), temperature=0.7)
    print("drawn:", tokenizer.decode([int(i) for i in more]))

# %% [markdown]
# ## The stream is a sum
#
# Embedding, every head, every feed-forward layer: all that is ever done to a token's stream is to add to it. So the
# last stream can be divided among those who wrote it. The arcs are what heads moved from one token's stream to
# another's; the boxes are the feed-forward layers, the darker the more they wrote.

# %%
stream = transformer.residual_stream(model, ids)
off = float(jnp.abs(stream.total - stream.stream[-1]).max() / jnp.abs(stream.stream[-1]).max())
print(f"the parts add up to the stream, to {off:.1e}")
shares = {name: np.asarray(part).reshape(-1, part.shape[-1]).sum(0) for name, part in stream.shares().items()}
print("share of the last stream, by part:", {name: f"{part.mean():.2f}" for name, part in shares.items()})
written = np.linalg.norm(stream.feed_forward, axis=-1)
fig, ax = plt.subplots(figsize=(7.0, 5.0), layout="constrained")
plot.residual_flow(np.asarray(stream.moved), ax, written=written, tokens=words)
plt.show()

# %% [markdown]
# ## The logit lens
#
# The head can be asked at every level what it would say. The answer forms on the way up.

# %%
lens = np.asarray(model.logit_lens(ids))
fig, ax = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
plot.logit_lens(lens, tokenizer.id_to_token, ax, tokens=words)
plt.show()

# %% [markdown]
# ## The memories of the last layer
#
# What fires a neuron, over paragraphs of Wikipedia that the model has not read, and which words its value promotes:
# for the three neurons that write most. The first one ends verbs: after "it soon enter" it says *s*. Its key is not a
# word but a place in a sentence.

# %%
texts = [one.ids[:48] for one in tokenizer.encode_batch(probe.bundled_texts(), add_special_tokens=False)]
texts = np.array([one for one in texts if len(one) == 48][: 16 if SMALL else 48])
memory = transformer.key_value_memory(model, texts, layer=-1, top=6, words=6)
size = memory.activation[:, 0] * np.linalg.norm(model.stack.block(-1).feed_forward.w_out, axis=1)
neurons = [int(neuron) for neuron in np.argsort(-size)[:3]]
fig, ax = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
plot.neuron_memory(memory, neurons, tokenizer.id_to_token, texts, ax, most=4)
plt.show()

# %% [markdown]
# ## A block is a step of the particle system
#
# Take a block with weights of its own, layer norm after each part, as in appendix A.1 of *Clustering in Transformers*.
# `as_field` reads it as a velocity, attention plus perceptron, on the sphere of the layer norm. One block whose parts
# are multiplied by a small h, and one step of length h along that velocity, then differ by the order of $h^2$; and h
# small enough, many such layers follow the continuous flow.

# %%
block = transformer.Block.random(key, 16, 2, 32, epsilon=0.0)
field = transformer.as_field(block)
x0 = field.space.sample(jax.random.key(1), n=12, d=16)


@eqx.filter_jit
def difference(h):
    parts = lambda b: (b.attention.output, b.feed_forward.w_out)
    scaled = eqx.tree_at(parts, block, tuple(h * part for part in parts(block)))
    return jnp.abs(scaled(x0) - transformer.as_layer(field, h)(0.0, x0)).max()


steps = np.array([0.1, 0.05, 0.025, 0.0125])
gaps = np.array([difference(jnp.asarray(h)) for h in steps])
orders = np.diff(np.log(gaps)) / np.diff(np.log(steps))
print("block against a step along its field:", gaps, " orders:", np.round(orders, 2))

depths = np.array([8, 16] if SMALL else [8, 16, 32])
flow = cjx.simulate(field, x0, jnp.linspace(0.0, 2.0, 21))
layered = [cjx.iterate(transformer.as_layer(field, 2.0 / depth), x0, int(depth)).x1 for depth in depths]
errors = np.array([float(jnp.abs(x - flow.xs[-1]).max()) for x in layered])
print("layers against the flow at t = 2:    ", errors, " orders:", np.round(-np.diff(np.log2(errors)), 2))

# %% [markdown]
# So everything of the particle system can be asked of the block: its clusters, its energy, its fixed points. Here the
# mean cosine along the flow, with the perceptron and without it.

# %%
heads_only = transformer.as_field(eqx.tree_at(lambda b: b.feed_forward, block, None))
ts = jnp.linspace(0.0, 8.0, 41)
fig, ax = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
for one, name, colour, line in (
    (heads_only, "attention alone", plot.OKABE_ITO[0], "-"),
    (field, "attention + perceptron", plot.OKABE_ITO[1], "--"),
):
    run = cjx.simulate(one, x0, ts)
    cosines = jax.vmap(cjx.pairwise_cosine)(run.xs)
    n = x0.shape[0]
    ax.plot(ts, (cosines.sum((1, 2)) - n) / (n * (n - 1)), color=colour, ls=line, label=name)
ax.set(xlabel="t", ylabel="mean cosine of two tokens")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The claims, asserted

# %%
assert decimal(tower) == [0.7, 0.4, 0.5, 0.2] and decimal(keys @ tower) == [1.03, 0.35]
assert decimal(features) == [1.12, 1.24, 0.74] and decimal(after) == [0.8, 0.45, 1.62, 0.5]
assert losses[-32:].mean() < best + 0.05 and -1 in favourite, "the word before the last one read is looked up"
assert off < 1e-5, "the stream is the sum of its parts"
assert np.all(np.abs(orders - 2) < 0.2), "a block is a step along its field, up to the square of the step"
assert np.all(errors[1:] < 0.6 * errors[:-1]), "and many of them follow the flow, to first order"
assert report["held-out loss"] < report["bigram loss"] - 0.3

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Another text, another layer, another block: `transformer.Block.random(..., residual=transformer.PreNorm())` has a
#   velocity too, in all of $\mathbb R^d$; with relative positions it has none, since its scores depend on the places of
#   the tokens, and `as_field` says so.
# - Norms with gains other than one, as trained post-norm blocks have, are no projections: a block that adds nothing
#   would still move the tokens. `as_field` refuses them, unless it is told the space.
# - What a head "moved" is the length of what it wrote, which others may cancel; `stream.share` says how much of it is
#   left in the last stream.
# - Whether training gathers the tokens of this model, and which of its heads become sinks: `clusterjax reproduce
#   language-training`. Whether the perceptron delays the collapse: `clusterjax reproduce perceptron-delay`.
#
# ## Exercises
#
# **1. Twice is once.** Show that the layer norm is a projection, that no scale of its input matters, and that gains
# other than one spoil the first but not the second.
#
# <details><summary>Answer</summary>
#
# A vector on the sphere, in the hyperplane of mean zero, stays where it is. With gains the norm ends on an ellipsoid,
# of which the next norm makes another one.
#
# ```python
# x = 5 * jax.random.normal(key, (6, 4)) + 3
# gains = eqx.tree_at(lambda norm: norm.gain, norm, jnp.array([1.0, 2.0, 3.0, 4.0]))
# np.testing.assert_allclose(norm(norm(x)), norm(x), atol=1e-12)
# np.testing.assert_allclose(gains(7 * x), gains(x), atol=1e-12)
# change = float(jnp.abs(gains(gains(x)) - gains(x)).max())
# print(f"with gains, the second norm moves an entry by {change:.2f}")
# assert change > 0.1
# ```
#
# </details>
#
# **2. The head of a text.** Which of the heads of the small language model is the text above worst without? Silence
# each with `probe.without`, and sum the losses of its words.
#
# <details><summary>Answer</summary>
#
# One head of a layer makes the difference of the others together look small; that is one text, and no statement about
# the head. Taking a head away may even help.
#
# ```python
# lm = probe.load("language-model")
# sentence = probe.encode(lm, [text], length=len(ids))
# loss = lambda one: float(np.mean(probe.token_losses(one, sentence)))
# whole = loss(lm)
# harm = np.array([[loss(probe.without(lm, "attention", layer=layer, head=head)) - whole
#                   for head in range(lm.num_heads)] for layer in range(lm.num_layers)])
# worst = np.unravel_index(harm.argmax(), harm.shape)
# print(np.round(harm, 3))
# print(f"worst without head {worst[1] + 1} of layer {worst[0] + 1}: {harm.max():+.3f} nats a word, to {whole:.3f}")
# assert harm.max() > 0.05 and np.isfinite(harm).all()
# ```
#
# </details>
