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
# # A trained ALBERT gathers tokens slightly more than with shuffled words, and not clearly more than before training
#
# *Clustering in Transformers*, Section 3 and Figures 1 and 2: when the shared layer of ALBERT is applied repeatedly,
# the tokens of a text become similar, and the heads attend similarly. Attention as a particle system predicts both. But
# random weights gather tokens too, and so does a text with its words in random order. A measurement says something
# about a *trained* network only in comparison with these two controls.
#
# **This notebook shows** Figures 1 and 2 of the paper for the ALBERT of the package, each with both controls, then the
# matrices of the heads, and last the heads as particles. It asserts the comparisons of the title.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot,probe]' jupyterlab`. The
# notebook needs no other file, and runs in less than two minutes on two cores.

# %%
import functools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot, probe


SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
key = jax.random.key(1909)

# %% [markdown]
# ## The network and its texts
#
# The network is a small ALBERT, which `clusterjax train albert` trained to predict masked word pieces, mostly on film
# reviews. A folder or an id of the hub as an argument, as in `probe.load("albert/albert-base-v2")`, loads another
# network. The texts are paragraphs of Wikipedia that the network was not trained on.

# %%
model = probe.load()
report = probe.bundled_training()["report"]
print(f"{report['parameters'] / 1e6:.2f} million parameters, {model.num_layers} layers, {model.num_heads} heads")
print(f"held-out loss {report['held-out loss']:.3f} nats; of word frequencies {report['unigram loss']:.3f}")
texts = probe.encode(model, probe.bundled_texts()[: 16 if SMALL else 48], length=64)
print("beginning of the first text:", model.tokenizer.decode(texts.token_ids[0][:24]))

# %% [markdown]
# ## Figure 1 with its controls
#
# The quantity is the mean cosine of two different tokens of a text, without padding, at each level. All runs use the
# same texts, so the differences between runs have the error bars of paired measurements.
#
# There are two meanings of "random weights". This network began its training with weights that write little to the
# tokens (`probe.bundled_start`), and these weights are the control. With the standard deviation that is usual for
# ALBERT, random weights gather the tokens almost completely within twelve layers.


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
# *Means over texts with standard errors. The three networks before training differ in the seed.*
#
# ## Figure 2 with its controls
#
# The quantity is the correlation of the attention maps of two heads, with the same controls. The heads are also divided
# into two clusters. A clustering algorithm divides any eight heads into two clusters; the stability, which is computed
# from resampled texts, tells whether the division is a property of the network.

# %%
correlations = functools.partial(probe.head_correlations, replicates=50)
alike = probe.controls(correlations, model, texts, key=key, initial=probe.bundled_start)
heads = alike.trained
print("mean correlation of two heads, by layer:", np.round(heads.between(), 2))
print("with shuffled tokens:                   ", np.round(alike.shuffled.between(), 2))
print("before training:                        ", np.round(alike.random[0].between(), 2))
for layer in (0, model.num_layers - 1):
    groups = [[head + 1 for head in group] for group in heads.clusters.groups(layer)]
    print(f"layer {layer + 1}: clusters of heads {groups}, stability {heads.clusters.stability[layer]:.2f}")
sinks = probe.attention_sinks(model, texts).excess["first"]
layer, head = np.unravel_index(np.argmax(sinks.mean), sinks.mean.shape)
print(
    f"strongest attention sink: head {head + 1} of layer {layer + 1} gives the first token the weight 1/n + "
    f"{sinks.mean[layer, head]:.3f} (standard error {sinks.error[layer, head]:.0e})"
)

# %% [markdown]
# ## The matrices
#
# The theorems assume $V = I$ or a positive definite $Q^\top K$. In a head of size k the matrix $B = Q^\top K$ has rank
# k, and the symmetric part of such a matrix in general has k positive and k negative eigenvalues; the next cell
# confirms this for each head. The words nearest to an eigenvector of V seem to give the eigenvector a meaning, but
# `clusterjax reproduce albert-spectra` finds that random directions are equally near to their nearest words.

# %%
spectra = probe.value_spectra(model)
negative = (spectra.query_key[0] < 0).mean(axis=1)
print("share of negative eigenvalues of the symmetric part of Q^T K, by head:", np.round(negative, 2))
real = [bool(abs(top.imag) < 1e-9 and top.real > 0) for top in spectra.value[0][:, 0]]
print("heads whose leading eigenvalue of V is real and positive:", [h + 1 for h, flag in enumerate(real) if flag])
found = probe.value_directions(model, int(np.argmax(spectra.value[0][:, 0].real)), top=1)
nearest = probe.nearest_words(model, np.real(found.vectors).astype(np.float32), top=6).words[0]
print("words nearest to the leading eigenvector of one head:", *nearest)

# %% [markdown]
# ## The same heads as particles
#
# The next cell moves the embedded tokens of one text on the sphere in continuous time, by the heads of the network,
# without feed-forward layer, learned layer norm and biases. `probe.bridge` does the same for many texts, with networks
# that lack one part each, and fits the time of a layer and $\beta$ by gradient descent through `simulate`.

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
print(f"increase of the mean cosine over the layers: {rise.mean():+.3f} +- {rise.std(ddof=1) / np.sqrt(rise.size):.3f}")
for what, one in (("mean cosine", seen), ("correlation of heads", alike)):
    for name, beyond in (("shuffled tokens", one.beyond_shuffled), ("before training", one.beyond_random)):
        print(f"{what}, trained minus {name}: {beyond.difference[-1]:+.3f} +- {beyond.error[-1]:.3f}")
assert rise.mean() > 5 * rise.std(ddof=1) / np.sqrt(rise.size)
assert seen.beyond_shuffled.exceeds()[-1] and not seen.beyond_random.exceeds()[-1]
assert usual.cosine.mean[-1] > seen.trained.cosine.mean[-1] + 0.2
assert alike.beyond_random.exceeds()[-1]
assert np.all(np.abs(negative - 0.5) < 1e-12)

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `probe.load` also loads `"albert/albert-base-v2"`, an encoder of T5, or a folder. `clusterjax probe MODEL` draws
#   these figures and more for any of them.
# - Training adds heads that attend similarly, but these heads do so for words in any order.
# - The effect of training depends on the recipe. `clusterjax reproduce albert-training` shows snapshots: after training
#   with three layers, twelve applications of the layer gather the tokens almost completely; after training with all
#   twelve layers, the tokens stay more separate.
# - The paper's statement "heads 3, 5 and 12 form a cluster" has no counterpart here: in the last layer one head differs
#   from seven similar heads, and this division is stable. A stable division need not consist of two clusters.
# - With the time and the temperature of the network, the particles gather much more slowly than the network.
#   `probe.bridge` fits both to other texts; the best fit is $\beta = 0$, uniform averaging. One fitted curve does not
#   establish a mechanism: `clusterjax reproduce albert-bridge` shows what each part does.

# %% [markdown]
# ## Three questions
#
# **1. More layers.** ALBERT has one layer, which can be applied any number of times: `probe.load(depth=24)`. Do the
# tokens become one cluster?
#
# <details><summary>Answer</summary>
#
# The tokens come closer to each other, but more slowly, and are still separate after 24 layers.
#
# ```python
# deep = similarity(probe.load(depth=24), texts).cosine.mean
# print("mean cosine at levels 0, 6, 12, 18, 24:", np.round(deep[::6], 3))
# np.testing.assert_allclose(deep[:13], seen.trained.cosine.mean, atol=1e-4)
# assert deep[12] < deep[24] < 0.99 and deep[24] - deep[12] < deep[12] - deep[0]
# ```
#
# </details>
#
# **2. A result of training?** Half of the eigenvalues of the symmetric part of $Q^\top K$ are negative. Did training
# cause this? Ask the same about V: in how many heads is the leading eigenvalue real and positive, with trained and with
# random weights?
#
# <details><summary>Answer</summary>
#
# Training did not cause the half: every matrix of rank k in general position has k eigenvalues of each sign. Random
# weights also have some heads whose leading eigenvalue of V is real and positive; eight heads are too few to decide
# whether training changes their share.
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
#
# **3. A word or a position?** One head gives nearly half of its weight to the first token, which is the special token
# [CLS]. Is the word [CLS] the reason, or the first position? Replace the first token of every text by the word after
# it, and measure this head again.
#
# <details><summary>Answer</summary>
#
# The reason is not the word: the head gives the same weight to another word at the first position. Every token gives
# half of its weight to the first position, and the other half to the last position.
#
# ```python
# ids = np.array(texts.token_ids)
# ids[:, 0] = ids[:, 1]
# replaced = probe.attention_sinks(model, probe.Encoded(ids, texts.mask)).excess["first"]
# weights = sinks.mean[layer, head], replaced.mean[layer, head]
# print(f"weight on the first token beyond 1/n: {weights[0]:.3f} with [CLS], {weights[1]:.3f} with another word")
# rows = np.asarray(probe.trace(model, ids[:1], texts.mask[:1]).attention[0, layer, head])
# print("mean weights on the first and the last token of one text:", rows[:, [0, -1]].mean(axis=0).round(3))
# assert abs(weights[1] - weights[0]) < 0.02 and np.abs(rows[:, [0, -1]] - 0.5).max() < 0.05
# ```
#
# </details>
