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
# # A trained ALBERT gathers its tokens, a little more than a bag of the same words, and no more than before training
#
# *Clustering in Transformers*, Section 3 and Figures 1 and 2: as ALBERT's shared layer is applied again and again, the
# tokens of a text become alike, and its heads attend alike. Both are what attention as a particle system predicts. But
# random weights gather tokens too, and so does a text whose words are in random order: only beside these two controls
# does the measurement say something about a *trained* network. This notebook measures all three on the ALBERT that
# comes with the package, then takes its heads apart, and at last runs them as particles.

# %%
import functools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot, probe


SMALL = bool(os.environ.get("SMALL"))
key = jax.random.key(1909)

# %% [markdown]
# ## The network and its texts
#
# A small ALBERT, trained by `clusterjax train albert` on film reviews, with a little Wikipedia, to guess hidden word
# pieces. A folder or an id on the hub in the place of nothing, as in `probe.load("albert/albert-base-v2")`, is any
# other. The texts are paragraphs of Wikipedia that it has not seen.

# %%
model = probe.load()
report = probe.bundled_training()["report"]
print(f"{report['parameters'] / 1e6:.2f} million parameters, {model.num_layers} layers, {model.num_heads} heads")
print(f"held-out loss {report['held-out loss']:.3f} nats, guessing by frequency {report['unigram loss']:.3f}")
texts = probe.encode(model, probe.bundled_texts()[: 16 if SMALL else 48], length=64)
print("first text:", model.tokenizer.decode(texts.token_ids[0][:24]), "...")

# %% [markdown]
# ## Figure 1, with its controls
#
# The mean cosine of the pairs of tokens of a text, padding and each token with itself left out, at each level. All runs
# see the same texts, so that their differences have the error bars of paired measurements.
#
# "Random weights" must be said more precisely. This network began with weights that write little to the tokens
# (`probe.bundled_start`), which is what it is compared with; drawn with the standard deviation that is usual for
# ALBERT, random weights gather the tokens almost entirely within twelve layers.


# %%
def similarity(model, texts):
    return probe.similarity_histograms(model, texts, rank=False)


seen = probe.controls(similarity, model, texts, key=key, initial=probe.bundled_start)
usual = similarity(probe.randomise(model, key), texts)
levels = np.arange(model.num_layers + 1)
fig, ax = plt.subplots(figsize=(5.0, 3.0), layout="constrained")
for found, name, colour, line in (
    (seen.trained, "trained", plot.OKABE_ITO[0], "-"),
    (seen.shuffled, "tokens shuffled", plot.OKABE_ITO[1], "--"),
    *((one, "before training" if one is seen.random[0] else None, plot.OKABE_ITO[2], ":") for one in seen.random),
    (usual, "random weights, usual scale", plot.OKABE_ITO[3], "-."),
):
    ax.errorbar(levels, found.cosine.mean, found.cosine.error, color=colour, ls=line, label=name)
ax.set(xlabel="layer", ylabel="mean cosine of two tokens", ylim=(0, 1))
ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
plt.show()

# %% [markdown]
# *Means over texts with standard errors; three networks before training, which differ in the seed.*
#
# ## Figure 2, and what it is worth
#
# The correlation of the attention maps of two heads, beside the same controls, and the heads in two clusters. Any eight
# heads can be divided in two; the stability, from resampled texts, says whether the division is one of the network.

# %%
correlations = functools.partial(probe.head_correlations, replicates=50)
alike = probe.controls(correlations, model, texts, key=key, initial=probe.bundled_start)
heads = alike.trained
print("mean correlation of two heads, by layer:", np.round(heads.between(), 2))
print("with shuffled tokens:                   ", np.round(alike.shuffled.between(), 2))
print("before training:                        ", np.round(alike.random[0].between(), 2))
for layer in (0, model.num_layers - 1):
    groups = [[head + 1 for head in group] for group in heads.clusters.groups(layer)]
    print(f"layer {layer + 1}: heads {groups}, stability {heads.clusters.stability[layer]:.2f}")
sinks = probe.attention_sinks(model, texts).excess["first"]
layer, head = np.unravel_index(np.argmax(sinks.mean), sinks.mean.shape)
print(
    f"the strongest sink: head {head + 1} of layer {layer + 1} gives the first token "
    f"{sinks.mean[layer, head]:.3f} +- {sinks.error[layer, head]:.3f} more than its share"
)

# %% [markdown]
# ## The matrices
#
# The theorems ask for $V = I$ or a positive definite $Q^\top K$. A head of size k has a $B = Q^\top K$ of rank k; the
# symmetric part of such a matrix has, in general, k positive and k negative eigenvalues. So it is here. The words
# nearest to an eigenvector of V look like a reading of it; `clusterjax reproduce albert-spectra` finds random
# directions no farther from their nearest words.

# %%
spectra = probe.value_spectra(model)
negative = (spectra.query_key[0] < 0).mean(axis=1)
print("share of negative eigenvalues of sym(Q^T K), by head:", np.round(negative, 2))
real = [bool(abs(top.imag) < 1e-9 and top.real > 0) for top in spectra.value[0][:, 0]]
print("heads whose leading eigenvalue of V is real and positive:", [h + 1 for h, flag in enumerate(real) if flag])
found = probe.value_directions(model, int(np.argmax(spectra.value[0][:, 0].real)), top=1)
print("nearest to its eigenvector:", *probe.nearest_words(model, np.real(found.vectors), top=6).words[0])

# %% [markdown]
# ## The same heads as particles
#
# One text, its embedded tokens on the sphere, moved by the network's own heads in continuous time: no feed-forward, no
# learnt norm, no bias. `probe.bridge` does this for many texts, between networks that lack one part each, and fits the
# time per layer and $\beta$ by gradient through `simulate`.

# %%
one = probe.trace(model, texts.token_ids[:1], texts.mask[:1])
hidden, word = np.asarray(one.hidden[0]), texts.mask[0]
radius = float(np.sqrt(np.mean(np.sum(hidden[:, word] ** 2, axis=-1))))
start = hidden[0][word] / np.linalg.norm(hidden[0][word], axis=1, keepdims=True)
run = cjx.simulate(probe.particle_field(model, radius), jnp.asarray(start), jnp.asarray(levels, jnp.float32))
off = ~np.eye(word.sum(), dtype=bool)
particles = np.array([np.asarray(cjx.pairwise_cosine(x))[off].mean() for x in run.xs])
network = np.array([np.asarray(cjx.pairwise_cosine(jnp.asarray(x[word])))[off].mean() for x in hidden])
print("network:  ", np.round(network, 2))
print("particles:", np.round(particles, 2))

# %% [markdown]
# ## The claim, asserted

# %%
rise = seen.trained.cosine.values[:, -1] - seen.trained.cosine.values[:, 0]
print(f"rise over the layers:  {rise.mean():+.3f} +- {rise.std(ddof=1) / np.sqrt(rise.size):.3f}")
for what, one in (("cosine", seen), ("correlation of heads", alike)):
    for name, beyond in (("shuffled tokens", one.beyond_shuffled), ("before training", one.beyond_random)):
        print(f"{what}, beyond {name}: {beyond.difference[-1]:+.3f} +- {beyond.error[-1]:.3f}")
assert rise.mean() > 5 * rise.std(ddof=1) / np.sqrt(rise.size)
assert seen.beyond_shuffled.exceeds()[-1] and not seen.beyond_random.exceeds()[-1]
assert usual.cosine.mean[-1] > seen.trained.cosine.mean[-1] + 0.2
assert alike.beyond_random.exceeds()[-1]
assert np.all(np.abs(negative - 0.5) < 1e-12)

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Another network: `probe.load("albert/albert-base-v2")`, a T5 encoder, or a folder. `clusterjax probe MODEL` draws
#   all of this, and more, for any of them.
# - `probe.load(depth=48)` applies the trained layer further: the tokens go on coming together, but not all into one
#   cluster, as the paper has it: the special tokens at both ends stay apart (`clusterjax reproduce figure1`).
# - What training does add are heads that attend alike. But they do so for words in any order.
# - Training does not simply add clustering. `clusterjax reproduce albert-training` shows the snapshots: trained with
#   three layers and applied twelve times, the network gathers its tokens almost fully; trained with all twelve, it
#   keeps them apart again.
# - The paper's "heads 3, 5 and 12 form a cluster" has no counterpart here: the last layer has one head apart from seven
#   that attend alike, and that division is perfectly stable. A stable division need not be two clusters.
# - The particles with the network's own time and temperature lag far behind it. `probe.bridge` fits both to other
#   texts; what then follows the curve is $\beta = 0$, uniform averaging at 0.70 of the network's pace, without the
#   feed-forward that holds the network's tokens apart. One curve is not a mechanism: see `clusterjax reproduce
#   albert-bridge` for what each part does.
#
# ## Exercises
#
# **1. Deeper.** ALBERT has one layer, which can be applied as often as one likes: `probe.load(depth=24)`. Do the tokens
# become one?
#
# <details><summary>Answer</summary>
#
# They go on coming together, more slowly, and do not become one.
#
# ```python
# deep = similarity(probe.load(depth=24), texts).cosine.mean
# print("mean cosine at layers 0, 6, 12, 18, 24:", np.round(deep[::6], 3))
# np.testing.assert_allclose(deep[:13], seen.trained.cosine.mean, atol=1e-4)
# assert deep[12] < deep[24] < 0.99
# ```
#
# </details>
#
# **2. A trace of training?** Half of the eigenvalues of each head's symmetric part are negative. Ask the network before
# training whether it has learned that, and the same of V: in how many heads is the leading eigenvalue real and
# positive?
#
# <details><summary>Answer</summary>
#
# It has not: any matrix of rank k in general position has k of each sign. And with random weights the leading
# eigenvalue of V is real and positive in some heads too; eight heads are too few to tell the shares apart.
#
# ```python
# def signs(network):
#     found = probe.value_spectra(network)
#     leading = found.value[0][:, 0]
#     share = (found.query_key[0] < 0).mean(axis=1)
#     return share, (np.abs(leading.imag) < 1e-9) & (leading.real > 0)
#
#
# random = {f"random {seed}": probe.randomise(model, jax.random.key(seed)) for seed in range(3)}
# for name, network in {"trained": model, **random}.items():
#     share, attractive = signs(network)
#     print(f"{name:>8}: negative {share.mean():.2f}, real and positive leading eigenvalue in {attractive.sum()} heads")
#     assert np.all(np.abs(share - 0.5) < 1e-12)
# ```
#
# </details>
