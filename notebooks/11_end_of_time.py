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
# # The last two clusters merge after a time like $e^{\beta(1-c)}$, and a run can be followed to this time
#
# Two clusters at the cosine c give each other only $e^{-\beta(1-c)}$ of the weight that they give themselves, so they
# merge late ([02_metastable_clusters](02_metastable_clusters.ipynb)). At $\beta = 80$ the time is $10^{32}$ and more,
# which no solver reaches with steps in t. `coarsen` replaces tokens that have met by one token with the sum of their
# masses, and takes its steps in the length of the path instead of in t: a long time in which tokens hardly move is a
# short path.
#
# **This notebook shows** runs up to the last merger, compares their merger times with a solver and with the exact law
# of two clusters, and measures how the time of the last merger grows with $\beta$. It asserts the agreement and the
# growth.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot]' jupyterlab`. The notebook
# needs no other file, and runs in less than two minutes on two cores.

# %%
import os

import diffrax as dfx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import quad

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
n, starts = (16, 4) if SMALL else (64, 24)
TOLERANCE = 0.1  # the chordal distance at which two clusters have met


def field(beta, masses=None):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta), masses=masses)


# %% [markdown]
# ## One run to its end
#
# The tokens are on the sphere in $\mathbb R^3$, and $\beta = 9$. The run ends with the last merger or at `t_end`; with
# `t_end` = 1e300 it ends with the last merger.

# %%
x0 = cjx.Sphere().sample(jax.random.key(2410), n=n, d=3)
tree = cjx.coarsen(field(9.0), x0, 1e300, tolerance=TOLERANCE)
print(tree)
print(f"{tree.num_steps} steps; the last three mergers at t =", [f"{t:.4g}" for t in tree.times[-3:]])
print(f"bound of the relative error of the merger times: {tree.bound.max():.1e}")
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained")
plot.dendrogram(tree, ax=left)
left.set(yticks=[])
for beta, colour in zip((4.0, 9.0, 30.0, 80.0), plot.OKABE_ITO, strict=False):
    one = tree if beta == 9.0 else cjx.coarsen(field(beta), x0, 1e300, tolerance=TOLERANCE)
    right.step(np.maximum(one.times, 1e-2), n - 1 - np.arange(n - 1), where="post", color=colour, label=f"{beta:g}")
right.set(xscale="log", yscale="log", xlabel="t", ylabel="clusters")
right.legend(frameon=False, title=r"$\beta$")
plt.show()

# %% [markdown]
# ## Comparison with a solver
#
# For a few tokens and small $\beta$, `simulate` with small tolerances reaches the last merger without coarsening. The
# next cell prints the distance between the last two clusters shortly before and shortly after the last merger of
# `coarsen`. The distance must be above the tolerance before, and below it after.

# %%
few = cjx.Sphere().sample(jax.random.key(1), n=6, d=3)
short = cjx.coarsen(field(3.0), few, 1e300, tolerance=TOLERANCE)
around = jnp.asarray([0.0, *(short.times[-1] * np.array([1 - 1e-5, 1 + 1e-5]))])
tight = dfx.PIDController(rtol=1e-11, atol=1e-13)
xs = cjx.simulate(field(3.0), few, around, stepsize_controller=tight).xs
labels = np.asarray(short.clusters(short.times[-1] * (1 - 1e-9)))
apart = [(i, j) for i in range(6) for j in range(6) if labels[i] != labels[j]]
nearest = [min(float(np.linalg.norm(x[i] - x[j])) for i, j in apart) for x in np.asarray(xs)]
print(f"last merger at t = {short.times[-1]:.8f}; distance before it {nearest[1]:.6f}, after it {nearest[2]:.6f}")
assert nearest[1] > TOLERANCE > nearest[2]

# %% [markdown]
# ## Two clusters, exactly
#
# The cosine of two clusters of masses $m_1 + m_2 = 1$ changes by
#
# $$\dot c = (1 - c^2) \left[ \frac{m_2 e^{\beta c}}{m_1 e^\beta + m_2 e^{\beta c}} +
# \frac{m_1 e^{\beta c}}{m_2 e^\beta + m_1 e^{\beta c}} \right],$$
#
# so the time from one cosine to another is an integral. To leading order it is $e^{\beta(1-c)} / (\beta (1 - c^2)
# (m_1/m_2 + m_2/m_1))$ for two clusters that start at the cosine c. `coarsen` does not use this law.


# %%
def exact(beta, cosine, masses):
    """The time until the chordal distance is the tolerance."""
    one, two = masses
    end = 1 - TOLERANCE**2 / 2

    def slowness(c):
        # The integral is computed without the factor exp(beta (1 - cosine)), which can be large.
        wait, small = np.exp(beta * (cosine - c)), np.exp(-beta * (1 - cosine))
        return 1 / ((1 - c**2) * (two / (one * wait + two * small) + one / (two * wait + one * small)))

    # Nearly all of the time passes while the cosine is within a few multiples of 1 / beta of its start.
    pieces = [cosine, *(cosine + k / beta for k in (1, 4, 16) if cosine + k / beta < end), end]
    parts = (quad(slowness, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in zip(pieces, pieces[1:], strict=False))
    return sum(parts) * np.exp(beta * (1 - cosine))


betas = np.array([5.0, 10.0, 20.0, 40.0, 80.0])
found, wanted = {}, {}
for masses in ((0.5, 0.5), (0.7, 0.3)):
    pair = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    trees = [cjx.coarsen(field(beta, jnp.array(masses)), pair, 1e300, tolerance=TOLERANCE) for beta in betas]
    found[masses] = np.array([tree.times[0] for tree in trees])
    wanted[masses] = np.array([exact(beta, 0.0, masses) for beta in betas])
    for beta, one, two in zip(betas, found[masses], wanted[masses], strict=True):
        told = f"coarsen {one:.8e}, integral {two:.8e}, relative difference {one / two - 1:+.0e}"
        print(f"masses {masses}, beta = {beta:4g}: {told}")

# %% [markdown]
# ## Many starts
#
# The picture shows the last merger of 16 tokens; lines connect runs from the same start. The logarithm of its time
# grows with $\beta$ at the rate $1 - c$ of the last two clusters, which is at most 2. Which clusters are the last two
# can change with $\beta$, so the growth from a single start can be faster or slower.

# %%
sweep = np.array([4.0, 9.0, 20.0, 40.0, 80.0])
clouds = [cjx.Sphere().sample(jax.random.key(seed), n=16, d=3) for seed in range(starts)]
last = np.array([[cjx.coarsen(field(beta), x, 1e300, tolerance=TOLERANCE).times[-1] for beta in sweep] for x in clouds])
fig, ax = plt.subplots(figsize=(4.6, 2.9), layout="constrained")
ax.semilogy(sweep, last.T, color=plot.OKABE_ITO[0], lw=0.7, alpha=0.5)
ax.semilogy(sweep, np.median(last, axis=0), "o-", color=plot.OKABE_ITO[1], label=f"median of {starts} starts")
ax.semilogy(sweep, np.exp(2 * sweep), "--", color="0.4", label=r"$e^{2\beta}$, of opposite clusters")
ax.set(xlabel=r"inverse temperature $\beta$", ylabel="time of the last merger")
ax.legend(frameon=False)
plt.show()
slopes = np.polyfit(sweep[1:], np.log(last[:, 1:]).T, 1)[0]
print("growth of log(last merger) with beta: smallest, median, largest", np.percentile(slopes, [0, 50, 100]).round(2))

# %% [markdown]
# ## The claims, asserted

# %%
for masses in found:
    assert np.all(np.abs(found[masses] / wanted[masses] - 1) < 1e-6), "a merger time differs from the exact law"
    slope = np.polyfit(betas[2:], np.log((found[masses] * betas)[2:]), 1)[0]
    assert abs(slope - 1) < 1e-2, "the time does not grow like e^{beta (1 - c)} / beta with c = 0"
assert len(tree) == n - 1 and tree.bound.max() < 1e-2, "not all tokens merge, or the error is large"
assert np.all(np.diff(np.median(last, axis=0)) > 0)
assert 1 < np.median(slopes) < 2, "in most starts the last two clusters are not at more than a right angle"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `tree.at(t)` returns all tokens at any time, and `tree.clusters(t)` the clusters.
# - `coarsen` raises an error for V = -I, because tokens that have met separate again.
# - The bound of the error is of first order. For a start that passes near an unstable equilibrium the bound is large,
#   and so can be the error.

# %% [markdown]
# ## Three questions
#
# **1. Which clusters are last?** When do the last two clusters of the run at $\beta = 80$ merge? Compute their cosine
# and their masses, and predict the time by the leading order above.
#
# <details><summary>Answer</summary>
#
# The clusters hardly move between the last two mergers, so the cosine right after the merger before the last one is the
# relevant one. The predicted logarithm of the time is right to a few percent.
#
# ```python
# run = cjx.coarsen(field(80.0), x0, 1e300, tolerance=TOLERANCE)
# before = float(run.times[-2]) * (1 + 1e-6)
# labels, points = np.asarray(run.clusters(before)), np.asarray(run.at(before))
# a, b = (labels == name for name in np.unique(labels))
# cosine = float(points[a][0] @ points[b][0])
# share = a.mean()
# predicted = 80 * (1 - cosine) - np.log(80 * (1 - cosine**2) * (share / (1 - share) + (1 - share) / share))
# print(f"cosine {cosine:.3f}, masses {share:.2f} and {1 - share:.2f}:", end=" ")
# print(f"log of the time {predicted:.1f} predicted, {np.log(run.times[-1]):.1f} found")
# assert abs(predicted / np.log(run.times[-1]) - 1) < 0.1
# ```
#
# </details>
#
# **2. A causal mask.** Two tokens at a right angle attend to each other. How does the time of their merger change with
# `mask=cjx.CausalMask()`?
#
# <details><summary>Answer</summary>
#
# It is exactly twice as long. With the mask the first token does not move, and the second token has the same velocity
# as without the mask, so the angle decreases at half the rate.
#
# ```python
# pair = jnp.eye(2)
# masked = cjx.AttentionField(cjx.SoftmaxAttention(20.0, mask=cjx.CausalMask()))
# full, causal = (cjx.coarsen(one, pair, 1e300, tolerance=TOLERANCE).times[0] for one in (field(20.0), masked))
# print(f"without the mask t = {full:.6g}, with it t = {causal:.6g}, ratio {causal / full:.8f}")
# assert abs(causal / full - 2) < 1e-6
# ```
#
# </details>
#
# **3. Which clusters are left?** Stop a run at t = $10^6$. What is the largest possible cosine of two clusters that
# have not merged, for $\beta = 30$ and for $\beta = 80$? Predict it before you compute it.
#
# <details><summary>Answer</summary>
#
# It is about $1 - \log(t) / \beta$, because two clusters at the cosine c merge after a time of the order of $e^{\beta(1
# - c)}$. The factor $1 / \beta$ of the exact law shortens this time, so all remaining pairs have smaller cosines.
#
# ```python
# for beta in (30.0, 80.0):
#     stopped = cjx.coarsen(field(beta), x0, 1e6, tolerance=TOLERANCE)
#     _, members = np.unique(np.asarray(stopped.clusters(1e6)), return_index=True)
#     centres = np.asarray(stopped.at(1e6))[members]
#     largest = (centres @ centres.T)[np.triu_indices(len(centres), 1)].max()
#     limit = 1 - np.log(1e6) / beta
#     print(f"beta = {beta:g}: {len(centres)} clusters, largest cosine {largest:.3f}, predicted limit {limit:.3f}")
#     assert len(centres) > 1 and largest < limit
# ```
#
# </details>
