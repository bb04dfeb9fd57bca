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
# # In $\mathbb R^d$ the spectrum of V decides the shape on which tokens end, and each clause can be certified
#
# Without layer norm the norms of tokens grow like $e^{tV}$. Geshkovski, Letrouit, Polyanskiy and Rigollet
# ([2305.05465](https://arxiv.org/abs/2305.05465)) rescale the tokens, $z = e^{-tV} x$, and prove where they end: on a
# polytope if V is the identity, and on at most three parallel hyperplanes if the leading eigenvalue of V is simple. In
# one dimension attention itself converges to a matrix of zeros and ones. `limit_shape` tests the hypotheses of each
# theorem on the field, and each clause of its statement on the tokens, with residuals. On the sphere norms cannot grow:
# [03_value_spectrum](03_value_spectrum.ipynb) is about the sphere.
#
# **This notebook shows** the limits of three matrices V in pictures, the rate of convergence, the limits of many
# starts, and attention in one dimension. It asserts that `limit_shape` certifies the shape that each theorem states.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot]' jupyterlab`. The notebook
# needs no other file, and runs in less than two minutes on two cores.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
n, starts = (12, 4) if SMALL else (24, 24)
END = 15.0
key = jax.random.key(2305)
values = {
    "identity": jnp.eye(2),
    "simple leading eigenvalue": jnp.diag(jnp.array([1.0, 0.4])),
    "identity on a plane of R^3": jnp.diag(jnp.array([1.0, 1.0, -0.5])),
}


def field(value):
    return cjx.RescaledField(cjx.SoftmaxAttention(1.0), value)


def run(value, key, ts):
    return cjx.simulate(field(value), cjx.Euclidean().sample(key, n, len(value)), ts)


# %% [markdown]
# ## Three matrices, three shapes

# %%
ts = jnp.asarray([0.0, 1.0, 3.0, END])
fig = plt.figure(figsize=(7.8, 2.9), layout="constrained")
ends = {}
for place, (name, value) in enumerate(values.items()):
    traj = run(value, key, ts)
    ends[name] = end = cjx.limit_shape(traj, field(value))
    ax = fig.add_subplot(1, 3, place + 1)
    ax = plot.cloud(traj.x1, ax, limit=end, labels=end.labels)
    ax.set_title(f"{name}:\n{end.kind}", fontsize=8)
    print(f"{name}: {end.kind}, {'certified' if end.certified else 'not certified'}; {end.theorem}")
plt.show()

# %% [markdown]
# The hypotheses and the clauses of the last shape, each with its result:

# %%
print(ends["identity on a plane of R^3"])

# %% [markdown]
# ## The rate of convergence
#
# The picture shows the largest distance of a token from the shape over time. Attention between rescaled tokens has the
# inverse temperature $e^{2t}$. As soon as one corner has the largest inner product with a token, the token attends only
# to this corner, and its distance from the shape decays like $e^{-t}$ or faster.

# %%
fine = jnp.linspace(0.0, END, 61)
fig, ax = plt.subplots(figsize=(4.6, 2.7), layout="constrained")
for (name, value), colour, line in zip(values.items(), plot.OKABE_ITO, ("-", "--", ":"), strict=False):
    shape = cjx.limit_shape(run(value, key, fine), field(value))
    ax.semilogy(shape.ts, np.maximum(shape.history, 1e-16), color=colour, ls=line, label=name)
ax.set(xlabel="t", ylabel="largest distance from the shape\n(relative to the largest norm)")
ax.legend(frameon=False, fontsize=7)
plt.show()

# %% [markdown]
# ## Many starts
#
# For how many random starts is the shape certified at t = 15? A token can need more time: if two corners have nearly
# equal inner products with a token, the token stays between them for a while.

# %%
certified = {}
for name, value in values.items():
    keys = jax.random.split(jax.random.fold_in(key, 1), starts)
    runs = [cjx.limit_shape(run(value, one, ts), field(value)) for one in keys]
    certified[name] = sum(shape.certified for shape in runs)
    sizes = np.bincount([len(shape.points) for shape in runs])
    print(f"{name}: {certified[name]} of {starts} certified;", end=" ")
    print("runs by number of corners or levels: " + ", ".join(f"{k}: {sizes[k]}" for k in np.flatnonzero(sizes)))

# %% [markdown]
# ## One dimension: attention becomes Boolean
#
# In the limit every row except at most one gives the whole weight to the smallest or to the largest token.

# %%
attention = cjx.SoftmaxAttention(1.0)
line = jnp.sort(0.5 * jax.random.normal(jax.random.fold_in(key, 2), (n, 1)), axis=0)
when = jnp.asarray([0.0, 1.0, 2.0, 4.0, 12.0])
traj = cjx.simulate(cjx.RescaledField(attention), line, when)
weights = jnp.stack([attention.weights(jnp.exp(t) * z) for t, z in zip(when, traj.xs, strict=True)])
fig, axes = plt.subplots(1, len(when), figsize=(7.2, 1.8), layout="constrained")
plot.attention_maps(weights, ts=when, times=when, axes=axes)
plt.show()
boolean = cjx.limit_shape(traj, cjx.RescaledField(attention))
away = np.sort(1 - np.asarray(weights[-1]).max(axis=1))
print(f"{boolean.kind}, {'certified' if boolean.certified else 'not certified'};", end=" ")
print(f"1 minus the largest weight, in all rows except one: at most {away[-2]:.1e}")

# %% [markdown]
# ## The claims, asserted

# %%
kinds = ["polytope", "hyperplanes", "polytope x subspace"]
assert [end.kind for end in ends.values()] == kinds and all(end.certified for end in ends.values())
assert all(end.applies for end in ends.values()), "the hypotheses of a theorem are not fulfilled"
assert len(ends["simple leading eigenvalue"].points) <= 3
assert all(count >= 0.75 * starts for count in certified.values())
assert boolean.kind == "Boolean" and boolean.certified and away[-2] < 1e-6

# %% [markdown]
# ## What to vary, and what does not hold
#
# - If the leading eigenvalues of V are a complex pair, no theorem applies, and the kind of `limit_shape` is "none".
# - The theorems are about full attention. With a causal mask `limit_shape` names this hypothesis as not fulfilled.
# - The theorems are about infinite time. A certificate is about the tokens at one time: a token near an unstable point
#   of the shape can still leave it.

# %% [markdown]
# ## Three questions
#
# **1. Too early.** Apply `limit_shape` to the run of the identity at t = 1. Which clause is not fulfilled?
#
# <details><summary>Answer</summary>
#
# The hull of the tokens has not grown, but some tokens are not yet on a face of the polytope, and move.
#
# ```python
# early = cjx.limit_shape(run(values["identity"], key, jnp.asarray([0.0, 1.0])), field(values["identity"]))
# failing = [clause.says for clause in early.clauses if not clause.held]
# print(failing)
# assert failing and not early.certified
# ```
#
# </details>
#
# **2. Another inverse temperature.** The theorem about the polytope holds for every $\beta > 0$. Does one start end on
# the same polytope for $\beta = 1$ and $\beta = 4$? If not, which polytope is larger?
#
# <details><summary>Answer</summary>
#
# The polytopes differ, and that of $\beta = 4$ is larger. The hull of the tokens shrinks until the corners attend only
# to themselves. For larger $\beta$ this time comes earlier, so the hull shrinks less. Both polytopes are in the hull of
# the start.
#
# ```python
# from scipy.spatial import ConvexHull
#
# start = cjx.Euclidean().sample(key, n, 2)
# fields = [cjx.RescaledField(cjx.SoftmaxAttention(one), jnp.eye(2)) for one in (1.0, 4.0)]
# areas = [ConvexHull(cjx.simulate(one, start, ts).x1).volume for one in fields]
# whole = ConvexHull(start).volume
# print(f"area of the hull: {whole:.2f} at the start, {areas[0]:.2f} for beta = 1, {areas[1]:.2f} for beta = 4")
# assert 1.05 * areas[0] < areas[1] < whole
# ```
#
# </details>
#
# **3. The negative identity.** Take $V = -I$ and the tokens themselves, without rescaling. Their covariance converges
# to zero. Does it decay exponentially?
#
# <details><summary>Answer</summary>
#
# It decays only algebraically: for Gaussian tokens $\mathrm{Cov}(t) = (\mathrm{Cov}(0)^{-1} + 2t)^{-1}$, so $2t\,
# \mathrm{Cov}(t)$ converges to the identity.
#
# ```python
# repelled = cjx.AttentionField(cjx.SoftmaxAttention(1.0), -jnp.eye(2), space=cjx.Euclidean())
# x = cjx.Euclidean().sample(jax.random.fold_in(key, 3), 64, 2)
# x = x - x.mean(axis=0)
# last = cjx.simulate(repelled, x, jnp.asarray([0.0, 400.0])).x1
# scaled = 2 * 400.0 * np.cov(np.asarray(last).T, bias=True)
# print(scaled.round(3))
# assert np.abs(scaled - np.eye(2)).max() < 0.05
# ```
#
# </details>
