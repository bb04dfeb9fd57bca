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
# # Clusters which attention merges in the end live for a time that grows exponentially in the inverse temperature
#
# In the end all tokens are one ([00_first_steps](00_first_steps.ipynb)), but the end may be far away. Two clusters at
# an angle $\theta$ see of each other only $e^{-\beta(1 - \cos\theta)}$ of what they see of themselves, and wait.
# Geshkovski, Koubbi, Polyanskiy and Rigollet ([2410.06833](https://arxiv.org/abs/2410.06833)) call this dynamic
# metastability: a staircase, whose steps are the longer the larger $\beta$. This notebook measures how long.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import quad

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))
n, starts, horizon = (8, 16, 300.0) if SMALL else (16, 64, 1000.0)
key = jax.random.key(2410)


def field(beta):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta))


# %% [markdown]
# ## One run, on a logarithmic clock
#
# 64 tokens on the circle at $\beta = 9$. `plateaus` finds the windows in which the number of clusters stays;
# "metastable" is a property of a window, and needs two thresholds.

# %%
ts = jnp.concatenate([jnp.zeros(1), jnp.logspace(-1, 4, 101)])
x0 = cjx.Sphere().sample(key, n=64, d=2)
trajectory = cjx.simulate(field(9.0), x0, ts)
clusters = np.array([int(cjx.num_clusters(x, radius=0.1)) for x in trajectory.xs])
steps = cjx.plateaus(ts, clusters, tolerance=0.25, min_dwell=5.0)
for start, stop, level in zip(steps.start, steps.stop, steps.level, strict=True):
    print(f"{level:2.0f} clusters from t = {start:7.1f} to {stop:7.1f}")
plot.player(trajectory, radius=0.1, title="beta = 9, on a logarithmic clock", height=380)

# %% [markdown]
# ## Two clusters, exactly
#
# Two clusters of equal mass at an angle $\theta$ are two tokens. Each sees the other with the weight
# $1/(1 + e^{\beta(1 - \cos\theta)})$, so that
#
# $$\dot\theta = -\frac{2 \sin\theta}{1 + e^{\beta (1 - \cos\theta)}}, \qquad
# T(\theta_0 \to \theta_1) = \int_{\theta_1}^{\theta_0} \frac{1 + e^{\beta(1 - \cos\theta)}}{2 \sin\theta}\, d\theta .$$
#
# The lifetime is exponential in $\beta$, at most like $e^{2\beta}$, which opposite clusters come near to.


# %%
def lifetime(beta, start, end):
    return quad(lambda a: (1 + np.exp(beta * (1 - np.cos(a)))) / (2 * np.sin(a)), end, start)[0]


START, END = 2.0, 0.2
pair = jnp.array([[1.0, 0.0], [jnp.cos(START), jnp.sin(START)]])
for beta in (1.0, 3.0, 5.0):
    exact = lifetime(beta, START, END)
    x = cjx.simulate(field(beta), pair, jnp.array([0.0, exact])).xs[-1]
    angle = float(jnp.arccos(x[0] @ x[1]))
    print(f"beta = {beta:g}: from {START} to {END} in t = {exact:.2f}; simulated to there: {angle:.6f}")
    assert abs(angle - END) < 1e-4

# %% [markdown]
# ## Many tokens
#
# How long until all of them are one? From random starts, on the circle, for five $\beta$. A run that has not ended by
# the horizon is *censored*: all that is known is that it lives longer. `lifetimes` counts it so, in the survival curve
# of Kaplan and Meier and in the median; leaving such runs out, or taking the horizon for their end, would make lives
# short.

# %%
betas = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
clock = jnp.concatenate([jnp.zeros(1), jnp.logspace(0, np.log10(horizon), 121)])


def count(beta, key):
    x0 = cjx.Sphere().sample(key, n=n, d=2)
    return cjx.simulate(field(beta), x0, clock, save=lambda t, x, args: cjx.num_clusters(x, 0.1)).xs


keys = jax.random.split(key, starts)
counts = jax.jit(jax.vmap(jax.vmap(count, (None, 0)), (0, None)))(jnp.asarray(betas), keys)
lives = [cjx.lifetimes(clock, (one > 1).astype(int), state=1) for one in np.asarray(counts)]
medians = np.array([one.median for one in lives])
for beta, one in zip(betas, lives, strict=True):
    print(f"beta = {beta:g}: median lifetime {one.median:7.1f}, {one.censored.sum()} of {starts} runs censored")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.6), layout="constrained")
for place, (beta, one) in enumerate(zip(betas, lives, strict=True)):
    curve = one.survival()
    times, shares = [1.0, *curve.times, curve.followed], [1.0, *curve.probabilities, curve.at(curve.followed)]
    left.step(times, shares, where="post", color=plt.colormaps["viridis"](place / 5), label=rf"$\beta$ = {beta:g}")
left.set(xscale="log", xlabel="time t", ylabel="share of runs with\nmore than one cluster", xlim=(1, horizon))
left.legend(frameon=False, fontsize=7)
known = np.isfinite(medians)
late = known & (betas >= 2)
slope, offset = np.polyfit(betas[late], np.log(medians[late]), 1)
right.semilogy(betas[known], medians[known], "o", color=plot.OKABE_ITO[0], label="median of the runs")
line = np.exp(offset + slope * betas[known])
right.semilogy(betas[known], line, "--", color="0.4", label=rf"$e^{{{slope:.2f} \beta}}$")
right.set(xlabel=r"inverse temperature $\beta$", ylabel="lifetime")
right.legend(frameon=False, fontsize=7)
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# From $\beta = 2$ on, each unit of $\beta$ multiplies the median by more than $e$, and by less than the $e^2$ of
# opposite clusters. At smaller $\beta$ the 1 in the formula above still counts.

# %%
print(f"median lifetime like exp({slope:.2f} beta), from beta = 2 on")
factors = np.exp(np.diff(np.log(medians[late])))
print("factor from one beta to the next:", np.round(factors, 1), f"; e and e^2 are {np.e:.1f} and {np.e**2:.1f}")
assert late.sum() >= 3 and np.all(np.diff(medians[known]) > 0)
assert np.all((np.e < factors) & (factors < np.e**2))

# %% [markdown]
# ## What to vary, and what does not hold
#
# - d = 3 in `time_to_one`: are lives longer or shorter where tokens can pass each other?
# - A radius is in every number of clusters. Once two clusters are close, their angle falls like $e^{-t}$, so that 0.01
#   in place of 0.1 makes every life longer by $\log 10$, and by no factor.
# - Very long lives, $\beta = 9$ and more, need a stiff solver; the documentation's page on very long times says which.
#
# ## Exercises
#
# **1. Unequal clusters.** Two clusters of masses 0.9 and 0.1, at the same angle (`AttentionField(..., masses=...)`). Do
# they live longer or shorter than equal ones?
#
# <details><summary>Answer</summary>
#
# Shorter: the small cluster sees little of itself. To leading order by the factor $2 / (\frac{m}{1-m} +
# \frac{1-m}{m})$, here 0.22.
#
# ```python
# def until(beta, masses, end=END):
#     one = cjx.AttentionField(cjx.SoftmaxAttention(beta), masses=jnp.array(masses))
#     fine = jnp.linspace(0.0, 1.1 * lifetime(beta, START, end), 4001)
#     xs = cjx.simulate(one, pair, fine).xs
#     angles = jnp.arccos(jnp.clip(jnp.sum(xs[:, 0] * xs[:, 1], axis=-1), -1, 1))
#     return float(fine[jnp.argmax(angles < end)])
#
#
# equal, unequal = until(5.0, [0.5, 0.5]), until(5.0, [0.9, 0.1])
# expected = 2 / (0.9 / 0.1 + 0.1 / 0.9)
# print(f"equal {equal:.1f}, unequal {unequal:.1f}: ratio {unequal / equal:.3f}, to leading order {expected:.3f}")
# assert abs(equal / lifetime(5.0, START, END) - 1) < 1e-2
# assert abs(unequal / equal - expected) < 0.1
# ```
#
# </details>
#
# **2. A phase diagram.** Where in the plane of t and $\beta$ are the tokens together? Draw it with
# `clusterjax.phase.phase_diagram` and `plot.clustering_diagram`, and see the edge rise like the logarithm of t.
#
# <details><summary>Answer</summary>
#
# The share of close pairs, over 64 starts of 8 tokens. Below the edge it is near one.
#
# ```python
# from clusterjax import phase
#
# diagram = phase.phase_diagram([0.5, 1.0, 2.0, 3.0, 4.0], [4.0, 16.0, 64.0, 256.0], n=8, samples=64, progress=False)
# share = diagram.close_pairs
# print(share.round(2).to_pandas())
# plot.clustering_diagram(diagram)
# edge = [float(share.beta.where(share.sel(t=t) > 0.9).max()) for t in (16.0, 64.0, 256.0)]
# print("largest beta of which nine pairs in ten are close, at t = 16, 64, 256:", edge)
# assert edge == sorted(edge) and edge[-1] > edge[0]
# ```
#
# </details>
