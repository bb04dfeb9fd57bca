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
# # Before all tokens become one, clusters stay separate for a time that grows exponentially in the inverse temperature
#
# All tokens become one cluster in the end ([00_first_steps](00_first_steps.ipynb)), but the end may be far away. Two
# clusters at an angle $\theta$ give each other only $e^{-\beta(1 - \cos\theta)}$ of the weight that they give
# themselves, so they move slowly. Geshkovski, Koubbi, Polyanskiy and Rigollet
# ([2410.06833](https://arxiv.org/abs/2410.06833)) call this behaviour dynamic metastability: the number of clusters
# over time is a staircase, whose steps become longer with $\beta$.
#
# **This notebook shows** the staircase of one run, compares two clusters with their exact law, and measures how the
# lifetime of several clusters grows with $\beta$ over many starts.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot,sweep]' jupyterlab` (only the
# last question needs `sweep`). The notebook needs no other file, and runs in less than two minutes on two cores.

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
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
n, starts, horizon = (8, 16, 300.0) if SMALL else (16, 64, 1000.0)
key = jax.random.key(2410)


def field(beta):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta))


# %% [markdown]
# ## One run, at logarithmic times
#
# The run has 64 tokens on the circle at $\beta = 9$. `plateaus` finds the windows of time in which the number of
# clusters is constant. A window is called metastable if it is longer than `min_dwell`: metastability needs this
# threshold.

# %%
ts = jnp.concatenate([jnp.zeros(1), jnp.logspace(-1, 4, 101)])
x0 = cjx.Sphere().sample(key, n=64, d=2)
trajectory = cjx.simulate(field(9.0), x0, ts)
clusters = np.array([int(cjx.num_clusters(x, radius=0.1)) for x in trajectory.xs])
steps = cjx.plateaus(ts, clusters, tolerance=0.25, min_dwell=5.0)
for start, stop, level in zip(steps.start, steps.stop, steps.level, strict=True):
    print(f"{level:2.0f} clusters from t = {start:7.1f} to {stop:7.1f}")
plot.player(trajectory, radius=0.1, title="beta = 9, at logarithmic times", height=380)

# %% [markdown]
# ## Two clusters, exactly
#
# Two clusters of equal mass at an angle $\theta$ move as two tokens. Each token gives the other token the weight $1/(1
# + e^{\beta(1 - \cos\theta)})$, so
#
# $$\dot\theta = -\frac{2 \sin\theta}{1 + e^{\beta (1 - \cos\theta)}}, \qquad
# T(\theta_0 \to \theta_1) = \int_{\theta_1}^{\theta_0} \frac{1 + e^{\beta(1 - \cos\theta)}}{2 \sin\theta}\, d\theta .$$
#
# The lifetime $T$ grows exponentially in $\beta$. The largest growth, $e^{2\beta}$, is approached by opposite clusters.


# %%
def lifetime(beta, start, end):
    return quad(lambda a: (1 + np.exp(beta * (1 - np.cos(a)))) / (2 * np.sin(a)), end, start)[0]


START, END = 2.0, 0.2
pair = jnp.array([[1.0, 0.0], [jnp.cos(START), jnp.sin(START)]])
for beta in (1.0, 3.0, 5.0):
    exact = lifetime(beta, START, END)
    x = cjx.simulate(field(beta), pair, jnp.array([0.0, exact])).xs[-1]
    angle = float(jnp.arccos(x[0] @ x[1]))
    print(f"beta = {beta:g}: the angle decreases from {START} to {END} in t = {exact:.2f}; simulated: {angle:.6f}")
    assert abs(angle - END) < 1e-4

# %% [markdown]
# ## Many tokens
#
# How long does it take until all tokens are one cluster? The next cell starts from random tokens on the circle, for
# five values of $\beta$. If a run has not ended at the last saved time, the horizon, its lifetime is *censored*: it is
# known only to be longer than the horizon. `lifetimes` takes censoring into account, in the median and in the survival
# curve of Kaplan and Meier. Medians without the censored runs, or with the horizon as their lifetime, would be too
# small.

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
# From $\beta = 2$ on, one more unit of $\beta$ multiplies the median lifetime by more than $e$, and by less than the
# $e^2$ of opposite clusters. For smaller $\beta$ the summand 1 in the formula above is not negligible.

# %%
print(f"the median lifetime grows like exp({slope:.2f} beta) from beta = 2 on")
factors = np.exp(np.diff(np.log(medians[late])))
print("factor from one beta to the next:", np.round(factors, 1), f"; e = {np.e:.1f} and e^2 = {np.e**2:.1f}")
assert late.sum() >= 3 and np.all(np.diff(medians[known]) > 0)
assert np.all((np.e < factors) & (factors < np.e**2))

# %% [markdown]
# ## What to vary, and what does not hold
#
# - d = 3 in `count`: are lifetimes longer or shorter where tokens can pass each other?
# - Very long lifetimes, at $\beta = 9$ and more, need an implicit solver: see the documentation's page on very long
#   times.
# - The growth is exponential only while the last two clusters have nearly the same angle for all $\beta$. The notebook
#   [11_end_of_time](11_end_of_time.ipynb) follows the angle up to $\beta = 80$.

# %% [markdown]
# ## Three questions
#
# **1. Another radius.** Every number of clusters depends on a radius, here 0.1. Change the radius in `count` to 0.01.
# Does this multiply the lifetimes by a factor, or does it add a time? Which one, and why does it not depend on $\beta$?
#
# <details><summary>Answer</summary>
#
# It adds the time $\log 10$. When two clusters are close, $\beta(1 - \cos\theta)$ is nearly zero, each token gives the
# weight 1/2 to the other, and the angle decays like $e^{-t}$ for every $\beta$. Ten times closer thus takes $\log 10$
# longer, and the growth with $\beta$ stays the same.
#
# ```python
# for beta in (1.0, 3.0, 5.0):
#     added = lifetime(beta, START, 0.01) - lifetime(beta, START, 0.1)
#     print(f"beta = {beta:g}: the angle 0.01 instead of 0.1 takes {added:.3f} longer; log 10 = {np.log(10):.3f}")
#     assert abs(added - np.log(10)) < 0.02
# ```
#
# </details>
#
# **2. Unequal clusters.** Let two clusters at the same angle as above have the masses 0.9 and 0.1 (`AttentionField(...,
# masses=...)`). Is their lifetime longer or shorter than that of equal clusters?
#
# <details><summary>Answer</summary>
#
# The lifetime is shorter, because the small cluster gives little weight to itself. To leading order in $e^{-\beta}$ the
# factor is $2 / (\frac{m}{1-m} + \frac{1-m}{m})$ for the masses $m$ and $1 - m$.
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
# **3. A phase diagram.** For which times t and inverse temperatures $\beta$ are the tokens in one cluster? Draw the
# share of close pairs with `clusterjax.phase.phase_diagram` and `plot.clustering_diagram`. How does the boundary of the
# clustered region depend on t?
#
# <details><summary>Answer</summary>
#
# The boundary rises like the logarithm of t, because the lifetime grows exponentially in $\beta$. Below the boundary
# nearly all pairs are close. (The answer needs `pip install 'clusterjax[sweep]'`.)
#
# ```python
# from clusterjax import phase
#
# diagram = phase.phase_diagram([0.5, 1.0, 2.0, 3.0, 4.0], [4.0, 16.0, 64.0, 256.0], n=8, samples=64, progress=False)
# share = diagram.close_pairs
# print(share.round(2).to_pandas())
# edge = [float(share.beta.where(share.sel(t=t) > 0.9).max()) for t in (16.0, 64.0, 256.0)]
# print("largest beta for which nine of ten pairs are close, at t = 16, 64 and 256:", edge)
# assert edge == sorted(edge) and edge[-1] > edge[0]
# fig, ax = plt.subplots(figsize=(4.2, 2.8), layout="constrained")
# plot.clustering_diagram(diagram, ax)
# plt.show()
# ```
#
# </details>
