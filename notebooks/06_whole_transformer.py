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
# # A Transformer block is a step of a particle system, and the residual stream is the sum of what the parts wrote
#
# The slides *Transformers, part 2* explain the parts of a Transformer: residual stream, layer norm, the feed-forward
# layer as a memory, positions, and the head that turns the last token into a word. *Clustering in Transformers*
# combines the parts to a particle system.
#
# **This notebook shows** the parts with numbers that can be checked by hand, then the stream, the logit lens and the
# memories of a small language model, and last a block as a velocity of particles. It asserts that the parts add up to
# the stream, and that one block is one step along its velocity up to the square of the step.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot,probe]' jupyterlab`. The
# notebook needs no other file, and runs in less than two minutes on two cores.

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


SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
jax.config.update("jax_enable_x64", True)
key = jax.random.key(2017)

# %% [markdown]
# ## Layer norm and positions by hand
#
# The next cell computes two examples of the slides: the layer norm of (2, 4, 6, 8), and the second row of the table of
# sinusoids in four dimensions.

# %%
norm = transformer.LayerNorm.identity(4, epsilon=0.0)
print("LN(2, 4, 6, 8) =", norm(jnp.array([2.0, 4.0, 6.0, 8.0])))
print("PE(1)          =", transformer.sinusoidal_positions(2, 4)[1])

# %% [markdown]
# The layer norm is a projection: it maps every vector to the sphere of radius $\sqrt d$ in the hyperplane of mean zero.
# This sphere is the space of the particles.

# %%
x = 5 * jax.random.normal(key, (6, 4)) + 3
print("norms after the layer norm:", np.round(jnp.linalg.norm(norm(x), axis=1), 12))
print("sums of the entries:       ", np.round(norm(x).sum(1), 12))

# %% [markdown]
# ## Three kinds of position
#
# *Sinusoids* are fixed vectors; the inner product of two of them depends only on the distance of the positions, so
# attention can use this distance. A *learned* table, here that of the language model below, need not have this
# property. *Relative* vectors are added to the keys, and so change the scores directly. The last example trains one
# layer with two heads, whose only information about positions are relative vectors, on texts in which each word equals
# the word two positions before it in nine of ten cases.

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
titles = ("sinusoids", "learned, cosines", "sinusoids and learned", "relative, after training")
for ax, letter, title in zip(axes.flat, "abcd", titles, strict=True):
    ax.text(0, 1.12, f"({letter}) {title}", transform=ax.transAxes, weight="bold", fontsize=9)

rng = np.random.default_rng(0)
rows = rng.integers(0, 8, (8192, 17))
for place in range(2, 17):
    same = rng.random(len(rows)) < 0.9
    rows[same, place] = rows[same, place - 2]
batches = jnp.asarray(rows).reshape(256, 32, 17)
adam = optax.adam(1e-2)


def trained(relative):
    """One layer after one pass over the texts, and the loss of each batch."""
    random = transformer.LanguageModel.random(
        of_model, 8, 32, 2, 64, 1, positions=None, dtype=jnp.float32, relative=relative
    )
    params, fixed = eqx.partition(random, eqx.is_inexact_array)

    def step(carry, batch):
        params, state = carry
        of = lambda p: transformer.language_loss(eqx.combine(p, fixed), batch)[0]
        loss, gradient = jax.value_and_grad(of)(params)
        updates, state = adam.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    (params, _), losses = jax.jit(lambda p: jax.lax.scan(step, (p, adam.init(p)), batches))(params)
    return eqx.combine(params, fixed), losses


of_vectors, of_model = jax.random.split(key)
small, losses = trained(transformer.RelativePositions.random(of_vectors, 6, 16, dtype=jnp.float32))
attention = small.stack.block(0).attention
x = small.stack.block(0).norms[0](small.embed(jnp.asarray(rows[0])))
queries = jnp.einsum("nd,hdk->hnk", x, attention.query)
plot.relative_positions(attention.relative.keys, axes[1, 1], queries=queries, beta=attention.beta)
plt.show()
same, other = 0.9 + 0.1 / 8, 0.1 / 8  # the probabilities of the word two positions before, and of each other word
best = (15 * -(same * np.log(same) + 7 * other * np.log(other)) + np.log(8)) / 16  # the second word is uniform
added = attention.beta * jnp.einsum("hnk,rk->hnr", queries, attention.relative.keys)
favourite = np.asarray(added.mean(axis=1))[:, :7].argmax(axis=1) - 6
print(f"loss: {losses[0]:.2f} nats before training, {losses[-32:].mean():.3f} after it; at best {best:.3f} on average")
print("distance with the largest score, for each head:", favourite)

# %% [markdown]
# ## The Eiffel Tower in exact arithmetic
#
# The slides follow the stream of "Tower": its embedding, the outputs of two heads, then two neurons of the feed-forward
# layer, and the stream after this layer. A neuron has a key and a value: the inner product of the key with the stream
# is the activation, and the neuron adds its value times the activation. The slides print four entries of each vector
# and dots for the other entries. The next cell computes with fractions, so the results for these four entries are
# exact.

# %%
exact = np.vectorize(Fraction)
embedding = exact(["0.4", "0.2", "0.2", "0.1"])
head_1, head_2 = exact(["0.1", "0.2", "0", "0.1"]), exact(["0.2", "0", "0.3", "0"])
tower = embedding + head_1 + head_2
keys = exact([["0.8", "0.1", "0.9", "-0.1"], ["0.1", "0.8", "-0.2", "0.3"]])  # neurons 2847 and 5432
values = exact([["0.9", "0.8", "0.6"], ["0.1", "0.7", "0.05"]])  # Paris, landmark, French culture
activations = exact(["1.2", "0.4"])
features = activations @ values
after = tower + np.array([*exact(["0.1", "0.05"]), features[0], Fraction("0.3")])
decimal = lambda numbers: [float(number) for number in numbers]
print("stream of Tower before the feed-forward layer: ", decimal(tower))
print("activations of the two neurons:                ", decimal(activations))
print("part of the activations from the four entries: ", decimal(keys @ tower))
print("part of the activations from the other entries:", decimal(activations - keys @ tower))
print("Paris, landmark, French culture:               ", decimal(features))
print("stream of Tower after the feed-forward layer:  ", decimal(after))

# %% [markdown]
# The printed numbers of the slides are consistent. The stream is (0.7, 0.4, 0.5, 0.2). The activations are 1.2 and 0.4,
# of which the four printed entries contribute 1.03 and 0.35, and the entries behind the dots 0.17 and 0.05. The two
# neurons write exactly 1.12 for Paris, 1.24 for landmark and 0.74 for French culture. The slides add the first of these
# numbers to the third entry of the stream, and 0.1, 0.05 and 0.3 to the other entries without saying which neurons
# write them. The stream after the feed-forward layer is (0.8, 0.45, 1.62, 0.5).
#
# (This is an encoder. In a causal model "Eiffel" comes before "Tower", so only "Tower" can attend to "Eiffel".)
#
# ## A small language model
#
# The language model of the package has four layers. `clusterjax train language-model` trained it mostly on film
# reviews.

# %%
model, tokenizer = transformer.load(), transformer.load_tokenizer()
report = transformer.bundled_training()["report"]
print(f"{report['parameters'] / 1e6:.2f} million parameters, {report['seconds'] / 60:.0f} minutes of training")
print(
    f"held-out loss {report['held-out loss']:.3f} nats; of bigrams {report['bigram loss']:.3f}, of word frequencies "
    f"{report['unigram loss']:.3f}"
)
text = "this is one of the worst films i have ever seen"
ids = jnp.asarray(tokenizer.encode(text, add_special_tokens=False).ids)
words = [tokenizer.id_to_token(int(i)) for i in ids]
likely = np.argsort(-np.asarray(model.next_token(ids)))[:5]
print(f"the most probable words after '{text}':", [tokenizer.id_to_token(int(i)) for i in likely])
for seed in range(2):
    more = model.extend(ids[:4], 20, key=jax.random.key(seed), temperature=0.7)
    print("a random continuation:", tokenizer.decode([int(i) for i in more]))

# %% [markdown]
# ## The stream is a sum
#
# The embedding, every head and every feed-forward layer only add to the stream of a token, so the last stream is a sum
# of what these parts wrote. In the picture, arcs are what heads moved from the stream of one token to that of another
# token; boxes are the feed-forward layers, darker for larger outputs.

# %%
stream = transformer.residual_stream(model, ids)
off = float(jnp.abs(stream.total - stream.stream[-1]).max() / jnp.abs(stream.stream[-1]).max())
print(f"largest relative difference of the stream and the sum of its parts: {off:.1e}")
shares = {name: np.asarray(part).reshape(-1, part.shape[-1]).sum(0) for name, part in stream.shares().items()}
print("share of the last stream, by part:", {name: f"{part.mean():.2f}" for name, part in shares.items()})
written = np.linalg.norm(stream.feed_forward, axis=-1)
fig, ax = plt.subplots(figsize=(7.0, 5.0), layout="constrained")
plot.residual_flow(np.asarray(stream.moved), ax, written=written, tokens=words)
plt.show()

# %% [markdown]
# ## The logit lens
#
# The logit lens applies the head for words to the stream at every level. The picture shows how the prediction forms
# from level to level.

# %%
lens = np.asarray(model.logit_lens(ids))
fig, ax = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
plot.logit_lens(lens, tokenizer.id_to_token, ax, tokens=words)
plt.show()

# %% [markdown]
# ## The memories of the last layer
#
# For the three neurons that write most, the picture shows the tokens with the largest activation, in paragraphs of
# Wikipedia that the model was not trained on, and the words that the value of the neuron promotes. The first neuron
# promotes the ending *s* of verbs, as after "it soon enter": its key belongs to a position in the sentence and not to a
# word.

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
# Take a block with random weights and a layer norm after each part, as in appendix A.1 of *Clustering in Transformers*.
# `as_field` interprets the block as a velocity, attention plus perceptron, on the sphere of the layer norm. If the
# outputs of both parts are multiplied by a small h, the block and one step of size h along this velocity differ by the
# order of $h^2$. Many such layers with small h therefore approximate the continuous flow.

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
print("difference of a block and a step along its velocity:", gaps, " orders:", np.round(orders, 2))

depths = np.array([8, 16] if SMALL else [8, 16, 32])
flow = cjx.simulate(field, x0, jnp.linspace(0.0, 2.0, 21))
layered = [cjx.iterate(transformer.as_layer(field, 2.0 / depth), x0, int(depth)).x1 for depth in depths]
errors = np.array([float(jnp.abs(x - flow.xs[-1]).max()) for x in layered])
print("difference of layers and the flow at t = 2:", errors, " orders:", np.round(-np.diff(np.log2(errors)), 2))

# %% [markdown]
# The observables of the particle system, such as clusters, energy and fixed points, therefore apply to the block. The
# picture shows the mean cosine of two tokens along the flow, with and without the perceptron.

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
assert losses[-32:].mean() < best + 0.05 and -1 in favourite, "no head attends to the word before the current one"
assert off < 1e-5, "the stream is not the sum of its parts"
assert np.all(np.abs(orders - 2) < 0.2), "a block is not a step along its velocity up to the square of the step"
assert np.all(errors[1:] < 0.6 * errors[:-1]), "the layers do not approximate the flow to first order"
assert report["held-out loss"] < report["bigram loss"] - 0.3

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Vary the text, the layer or the block. `transformer.Block.random(..., residual=transformer.PreNorm())` has a
#   velocity too, in all of $\mathbb R^d$. A block with relative positions has none, because its scores depend on the
#   positions of the tokens; `as_field` raises an error.
# - A layer norm with gains other than one, as in trained post-norm blocks, is not a projection: a block whose parts add
#   nothing would still move the tokens. `as_field` raises an error for such a block unless its argument `space` is
#   given.
# - The amount that a head "moved" is the norm of its output, which other parts can cancel. `stream.share` is the
#   contribution to the last stream after such cancellation.
# - `clusterjax reproduce language-training` shows whether training gathers the tokens of this model, and which of its
#   heads become sinks. `clusterjax reproduce perceptron-delay` shows whether the perceptron delays the collapse.

# %% [markdown]
# ## Three questions
#
# **1. Properties of the layer norm.** Show that the layer norm is a projection, and that its output does not depend on
# the scale of its input. Which of the two properties remains if the gains differ from one?
#
# <details><summary>Answer</summary>
#
# The second property remains. A vector of mean zero and norm $\sqrt d$ is its own layer norm. With gains, the outputs
# are on an ellipsoid instead of a sphere, and the next layer norm moves them again.
#
# ```python
# x = 5 * jax.random.normal(key, (6, 4)) + 3
# gains = eqx.tree_at(lambda norm: norm.gain, norm, jnp.array([1.0, 2.0, 3.0, 4.0]))
# np.testing.assert_allclose(norm(norm(x)), norm(x), atol=1e-12)
# np.testing.assert_allclose(gains(7 * x), gains(x), atol=1e-12)
# change = float(jnp.abs(gains(gains(x)) - gains(x)).max())
# print(f"with gains, the second layer norm changes an entry by {change:.2f}")
# assert change > 0.1
# ```
#
# </details>
#
# **2. Without positions.** Train the layer of panel (d) without relative vectors: `trained(None)`. The mask stays
# causal. Can the layer still find the word two positions before the next one?
#
# <details><summary>Answer</summary>
#
# No: without positions the output of one layer depends only on the current word and on how often each word occurs
# before it, not on the order of these words. The loss is therefore larger than that of the layer with relative vectors.
#
# ```python
# _, without = trained(None)
# print(f"loss: {without[-32:].mean():.3f} nats without positions, {losses[-32:].mean():.3f} with relative vectors")
# assert without[-32:].mean() > losses[-32:].mean() + 0.2
# ```
#
# </details>
#
# **3. The most important head of a text.** Without which head does the loss of the text above increase most? Remove
# each head of the language model with `probe.without`, and compare the mean losses.
#
# <details><summary>Answer</summary>
#
# One head has a much larger effect than most other heads. This is a statement about one text: for another text another
# head can be the most important one, and removing a head can even decrease the loss.
#
# ```python
# lm = probe.load("language-model")
# sentence = probe.encode(lm, [text], length=len(ids))
# loss = lambda one: float(np.mean(probe.token_losses(one, sentence)))
# whole = loss(lm)
# increase = np.array([[loss(probe.without(lm, "attention", layer=layer, head=head)) - whole
#                       for head in range(lm.num_heads)] for layer in range(lm.num_layers)])
# layer, head = np.unravel_index(increase.argmax(), increase.shape)
# print(np.round(increase, 3))
# print(f"largest increase, without head {head + 1} of layer {layer + 1}: {increase.max():.3f} nats per word")
# assert increase.max() > 0.05 and increase.max() > 2 * np.median(np.abs(increase))
# ```
#
# </details>
