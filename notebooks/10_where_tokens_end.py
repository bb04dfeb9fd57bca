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
# # In $\mathbb R^d$ tokens end on a shape that the spectrum of V decides, and each clause can be certified
#
# Without layer norm tokens run away, like $e^{tV}$. Geshkovski, Letrouit, Polyanskiy and Rigollet
# ([2305.05465](https://arxiv.org/abs/2305.05465)) look at the rescaled tokens $z = e^{-tV} x$ and prove where they end:
# on a polytope if V is the identity, on at most three parallel hyperplanes if its leading eigenvalue is simple, and in
# one dimension attention itself becomes a matrix of zeros and ones. `limit_shape` tests the hypotheses of each theorem
# on the field, and every clause of its claim on the tokens, with residuals. On the sphere no token can run
# away: there it is [03_value_spectrum](03_value_spectrum.ipynb).

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))
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
# What was asked, and what was found, of the last of them:

# %%
print(ends["identity on a plane of R^3"])

# %% [markdown]
# ## How fast
#
# The largest distance of a token from the shape, over time. Attention between rescaled tokens has the inverse
# temperature $e^{2t}$: once the inner product with one corner is the largest, a token attends to that corner alone, and
# what is left of the distance decays like $e^{-t}$ or faster.

# %%
fine = jnp.linspace(0.0, END, 61)
fig, ax = plt.subplots(figsize=(4.6, 2.7), layout="constrained")
for (name, value), colour, line in zip(values.items(), plot.OKABE_ITO, ("-", "--", ":"), strict=False):
    shape = cjx.limit_shape(run(value, key, fine), field(value))
    ax.semilogy(shape.ts, np.maximum(shape.history, 1e-16), color=colour, ls=line, label=name)
ax.set(xlabel="t", ylabel="largest distance from the shape\n(longest token = 1)")
ax.legend(frameon=False, fontsize=7)
plt.show()

# %% [markdown]
# ## Many starts
#
# Of how many random starts is the shape certified by t = 15? A token may need longer: one that is equally near to two
# corners waits between them.

# %%
certified = {}
for name, value in values.items():
    keys = jax.random.split(jax.random.fold_in(key, 1), starts)
    runs = [cjx.limit_shape(run(value, one, ts), field(value)) for one in keys]
    certified[name] = sum(shape.certified for shape in runs)
    sizes = np.bincount([len(shape.points) for shape in runs])
    print(f"{name}: {certified[name]} of {starts} certified;", end=" ")
    print("corners or levels: " + ", ".join(f"{k} in {sizes[k]}" for k in np.flatnonzero(sizes)))

# %% [markdown]
# ## One dimension: attention becomes Boolean
#
# Every row but at most one attends in the end to the smallest or to the largest token alone.

# %%
attention = cjx.SoftmaxAttention(1.0)
line = jnp.sort(0.5 * jax.random.normal(jax.random.fold_in(key, 2), (n, 1)), axis=0)
when = jnp.asarray([0.0, 1.0, 2.0, 4.0, 12.0])
traj = cjx.simulate(cjx.RescaledField(attention), line, when)
weights = jnp.stack([attention.weights(jnp.exp(t) * z) for t, z in zip(when, traj.xs, strict=True)])
plot.attention_maps(weights, ts=when, times=when)
plt.show()
boolean = cjx.limit_shape(traj, cjx.RescaledField(attention))
away = np.sort(1 - np.asarray(weights[-1]).max(axis=1))
print(f"{boolean.kind}: certified {boolean.certified}; in all rows but one a weight is 1 but for {away[-2]:.1e}")

# %% [markdown]
# ## The claims, asserted

# %%
kinds = ["polytope", "hyperplanes", "polytope x subspace"]
assert [end.kind for end in ends.values()] == kinds and all(end.certified for end in ends.values())
assert all(end.applies for end in ends.values()), "a theorem says so"
assert len(ends["simple leading eigenvalue"].points) <= 3
assert all(count >= 0.75 * starts for count in certified.values())
assert boolean.kind == "Boolean" and boolean.certified and away[-2] < 1e-6

# %% [markdown]
# ## What to vary, and what does not hold
#
# - V with a complex leading pair: no theorem, and `limit_shape` says "none".
# - A causal mask: the theorems are about full attention; the hypothesis that fails is named.
# - The theorems are about $t \to \infty$. A certificate is about the tokens at one time: what waits at an unstable
#   point of the shape may still leave it.
#
# ## Exercises
#
# **1. The negative identity.** What becomes of $V = -I$, of the tokens themselves, not rescaled? Their covariance
# goes to zero; how fast?
#
# <details><summary>Answer</summary>
#
# Only algebraically: for Gaussian tokens $\mathrm{Cov}(t) = (\mathrm{Cov}(0)^{-1} + 2t)^{-1}$, so that
# $2t\,\mathrm{Cov}$ tends to the identity.
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
#
# **2. A run that stops too early.** Judge the run of the identity at t = 1. Which clause fails, and does `certified`
# say what it should?
#
# <details><summary>Answer</summary>
#
# Some tokens are not on the faces yet.
#
# ```python
# early = cjx.limit_shape(run(values["identity"], key, jnp.asarray([0.0, 1.0])), field(values["identity"]))
# failing = [clause.says for clause in early.clauses if not clause.held]
# print(failing)
# assert failing and not early.certified
# ```
#
# </details>
