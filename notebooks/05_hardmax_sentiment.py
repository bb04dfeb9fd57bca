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
# # The leaders of a trained sentiment model are the words that carry sentiment
#
# *Clustering in pure-attention hardmax transformers and its role in sentiment analysis*
# ([2407.01602](https://arxiv.org/abs/2407.01602)), Section 5: words of a review move through hardmax layers and gather
# at a few leaders, and a hyperplane divides where they end. The paper says that the embedding learns to make
# meaningful words leaders. With real reviews this is a matter of opinion. Here it is none: the reviews are made up, ten
# positive and ten negative words are planted in a thousand meaningless ones, and only the reviews' labels are shown
# to the model. This notebook asks whether the leaders that decide are the planted words.

# %%
import os
from collections import Counter

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np

from clusterjax import hardmax, plot, sentiment


SMALL = bool(os.environ.get("SMALL"))
key = jr.key(2407)

# %% [markdown]
# ## Reviews with an answer
#
# A review is positive if it holds more positive than negative planted words. Which half of the films a review belongs
# to decides whether it is trained on.

# %%
made = sentiment.synthetic_reviews(key, 2000 if SMALL else 6000, shortest=20, longest=30)
planted = {*made.positive, *made.negative}
split = sentiment.official_split(made.reviews, key=key)
print(len(split.train), "reviews to train on,", len(split.validation), "to validate,", len(split.test), "to test")
print("label", split.test.labels[0], "-", split.test.texts[0].replace("<br />", ""))

# %% [markdown]
# ## Training, through the hardmax itself
#
# $z_i \leftarrow z_i + \frac{\alpha}{1 + \alpha}(z_{j(i)} - z_i)$ with $j(i)$ the word that maximises
# $\langle z_i, z_j\rangle$; eight such layers, then the sign of $\langle w, \bar z\rangle + v$. The choice $j(i)$ is
# piecewise constant, so that the derivative exists almost everywhere: no softmax takes the hardmax's place. Words start
# along $w$ at their naive-Bayes log ratios, with a little noise across.

# %%
recipe = sentiment.Recipe.of_dim(2, epochs=12, noise=0.02, smoothing=2.0)
fitted = sentiment.fit(split.train, split.validation, recipe, key=key, say=print)
model = fitted.model
test = sentiment.encode_reviews(split.test, fitted.vocabulary, length=recipe.length)
logits = sentiment.predict_logits(model, test.ids, test.counts)
right = (logits > 0) == (test.labels == 1)
print(f"test accuracy {right.mean():.3f} +- {np.sqrt(right.mean() * (1 - right.mean()) / len(right)):.3f}")

# %% [markdown]
# ## The words of one review
#
# The words come to their leaders (stars). One leads on the side of the review's label; another leads the few words that
# point the other way.

# %%
names = np.array(["<pad>", "<unk>", *fitted.vocabulary.words])
row = int(np.argmax(np.where(right, logits, -np.inf)))
n = int(test.lengths[row])
ids, counts = jnp.asarray(test.ids[row, :n]), jnp.asarray(test.counts[row, :n], jnp.float32)
path = np.asarray(model.path(ids, counts))
first = np.asarray(hardmax.leaders(model.embedding[ids, 0], model.layer(0, counts), 8).first)

w, v = np.asarray(model.w[0]), float(model.v)
frame = np.stack([w, [-w[1], w[0]]]) / np.linalg.norm(w)  # across the hyperplane, and along it
shown = path @ frame.T + [v / np.linalg.norm(w), 0.0]
reach = np.abs(shown).max(axis=(0, 1))
fig, axes = plt.subplots(3, 1, figsize=(6.0, 5.4), layout="constrained")
for ax, layer in zip(axes, (0, 1, 8), strict=True):
    led = np.flatnonzero((first >= 0) & (first <= layer))
    limits = ((-0.5 * reach[0], 1.25 * reach[0]), (-1.4 * reach[1], 1.4 * reach[1]))
    ax.set_title(f"layer {layer}", fontsize=8)
    plot.words(
        shown[layer], list(names[test.ids[row, :n]]), ax, leaders=led, line=([1.0, 0.0], 0.0), limits=limits,
        equal=False, fontsize=7,
    )  # fmt: skip
plt.show()

# %% [markdown]
# *A positive review. Across: the distance from the hyperplane (dashed); along it, on a larger scale: the rest.*
#
# ## Who leads?
#
# The leaders of every test review, by their definition: a word leads if at some layer it attends to itself alone.


# %%
@jax.jit
def first_layers(ids, counts):
    def of_one(review):
        ids, counts = review
        return hardmax.leaders(model.embedding[ids, 0], model.layer(0, counts), 8).first

    return jax.lax.map(of_one, (ids, counts), batch_size=64)


led = np.asarray(first_layers(jnp.asarray(test.ids), jnp.asarray(test.counts, jnp.float32))) >= 0
led &= test.counts > 0
distance = (np.asarray(model.embedding[:, 0]) @ w + v) / np.linalg.norm(w)
print(f"{led.sum(axis=1).mean():.2f} leaders in a review of {test.lengths.mean():.1f} different words")
print(f"median distance from the hyperplane: leaders {np.median(np.abs(distance[test.ids[led]])):.2f}, "
      f"other words {np.median(np.abs(distance[test.ids[(test.counts > 0) & ~led]])):.2f}")  # fmt: skip

# %% [markdown]
# In each review that is classified correctly and confidently (the quarter of the test part with the largest logits)
# one leader is the farthest from the hyperplane. It decides: most words end on it.

# %%
confident = right & (np.abs(logits) >= np.quantile(np.abs(logits), 0.75))
away = np.where(led, np.abs(distance[test.ids]), -1.0)
decides = names[np.take_along_axis(test.ids, away.argmax(axis=1)[:, None], axis=1)[:, 0]][confident]
times = Counter(decides.tolist())
found = [(word, count) for word, count in times.most_common(15)]

fig, ax = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
sides = [0 if word in made.positive else 5 if word in made.negative else 7 for word, _ in found]
ax.barh([word for word, _ in found], [count for _, count in found], color=[plot.OKABE_ITO[k] for k in sides])
ax.invert_yaxis()
ax.set(xlabel="confident correct reviews that it decides", title="blue: planted positive; vermilion: planted negative")
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# Of a thousand words that could lead, the ones that decide are the planted ones, each on its own side.

# %%
share = np.mean([word in planted for word in decides])
positive = [word for word in times if distance[names == word][0] > 0]
print(f"deciding leaders that are planted words: {share:.1%} of {len(decides)}; by chance {20 / 1020:.1%}")
print("on the positive side:", ", ".join(sorted(positive)))
assert share >= 0.95
assert {word for word in positive if word in planted} <= set(made.positive)
assert {word for word in times if word not in positive and word in planted} <= set(made.negative)

# %% [markdown]
# ## What to vary, and what does not hold
#
# - The *other* leader of a review is often a meaningless word: the few words that point away from the majority need a
#   leader too, and near the hyperplane anything will do. "Leaders are meaningful" holds for those far from it.
# - `Recipe.of_dim(16)`: nearly every word becomes its own leader, and nothing is left to interpret.
# - Real reviews: `sentiment.load_imdb("imdb.csv")`, and `clusterjax reproduce sentiment-leaders --imdb imdb.csv`.
#
# ## Exercises
#
# **1. Is it the leader?** Take the deciding leader out of each confident review, and, for comparison, another of its
# words. How much does the logit fall?
#
# <details><summary>Answer</summary>
#
# A count of zero takes a word out. Without its leader the review loses most of its logit, without another word hardly
# anything: the leader decides, and not only by being one of the words.
#
# ```python
# def without_word(places):
#     counts = np.array(test.counts)
#     counts[np.arange(len(counts)), places] = 0
#     less = sentiment.predict_logits(model, test.ids, counts)
#     return np.mean((np.abs(logits) - np.sign(logits) * less)[confident])
#
#
# deciding = away.argmax(axis=1)
# another = np.where(led | (test.counts == 0), -1.0, np.random.default_rng(0).random(led.shape)).argmax(axis=1)
# falls = without_word(deciding), without_word(another)
# print(f"mean logit {np.abs(logits)[confident].mean():.2f}")
# print(f"it is {falls[0]:.2f} less without the leader, and {falls[1]:.2f} less without another word")
# assert falls[0] > 3 * abs(falls[1])
# ```
#
# </details>
#
# **2. What the layers are for.** `model.path` gives the words after each layer. Classify the review that is drawn above
# after each of them, by the mean of its words. When is its logit large?
#
# <details><summary>Answer</summary>
#
# The mean word moves towards the leaders, layer by layer: the hardmax layers make a weak majority a clear answer.
#
# ```python
# means = np.einsum("n,lnd->ld", np.asarray(counts), path) / float(counts.sum())
# after_layers = means @ w + v
# print("logit after layers 0 to 8:", np.round(after_layers, 2))
# np.testing.assert_allclose(after_layers[-1], logits[row], rtol=1e-3)
# assert after_layers[-1] > 1.5 * abs(after_layers[0])
# ```
#
# </details>
