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
# # Tokens that attend to each other become one cluster, and their energy never falls
#
# Attention moves each token towards a weighted mean of all tokens, in which similar tokens have larger weights. Layer
# normalisation keeps the tokens on a sphere, and the depth of the network is the time of the motion. Geshkovski,
# Letrouit, Polyanskiy and Rigollet ([2312.10794](https://arxiv.org/abs/2312.10794)) prove two facts about this motion:
# in three or more dimensions, for every inverse temperature $\beta$ and almost every start, all tokens converge to one
# point (Theorem 6.1), and an energy never falls on the way (Section 3.4).
#
# **This notebook shows** one run in pictures, then many runs at once, and asserts both facts for each of the many runs.
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


jax.config.update("jax_enable_x64", True)  # without this line all numbers are float32
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
n, d, starts = (16, 3, 4) if SMALL else (64, 3, 32)
beta = 1.0
key = jax.random.key(0)

# %% [markdown]
# ## The model
#
# $$\dot x_i = P_{x_i}\Big(\sum_j \frac{e^{\beta \langle x_i, x_j\rangle}}{\sum_k e^{\beta \langle x_i, x_k\rangle}}
# \, x_j\Big), \qquad P_x v = v - \langle x, v\rangle x .$$
#
# `SoftmaxAttention` computes the weights of the mean, and `AttentionField` computes the velocity $\dot x$. The space of
# the tokens is the sphere unless the argument `space` names another space. A matrix V, a form $Q^\top K$, a mask and
# masses of the tokens are further arguments of these two classes.

# %%
attention = cjx.SoftmaxAttention(beta)
field = cjx.AttentionField(attention)
x0 = cjx.Sphere().sample(key, n=n, d=d)
print("tokens:", x0.shape, x0.dtype)
print("the four largest weights of token 1:", np.round(np.sort(attention.weights(x0)[0])[::-1][:4], 3))
print("sum of all weights of token 1:", round(float(attention.weights(x0)[0].sum()), 12))

# %% [markdown]
# ## One run
#
# `simulate` takes the field, the tokens and the times to save, and chooses its time steps by itself. The result is a
# trajectory, which contains the times `ts`, the tokens `xs` at these times, and the number of time steps in `stats`.

# %%
ts = jnp.linspace(0.0, 15.0, 31)
trajectory = cjx.simulate(field, x0, ts)
print("saved:", trajectory.xs.shape, "in", int(trajectory.stats["num_steps"]), "steps")
for t in (0.0, 3.0, 6.0, 15.0):
    x = trajectory.xs[int(jnp.argmin(jnp.abs(ts - t)))]
    print(f"t = {t:4g}: {int(cjx.num_clusters(x, radius=0.1)):3d} clusters at radius 0.1")

# %%
fig, axes = plt.subplots(1, 4, figsize=(7.2, 2.1), layout="constrained")
plot.snapshots(trajectory, times=(0.0, 3.0, 6.0, 15.0), axes=axes)
plt.show()

# %% [markdown]
# *Equal tokens have equal velocities, so a cluster never divides.* The next cell plays the same run: the picture can be
# turned with the pointer, and the slider sets the time. `plot.player(trajectory, "run.html")` writes the run to a page
# that needs no other file.

# %%
plot.player(trajectory, radius=0.1, title=f"beta = {beta:g}", height=380)

# %% [markdown]
# ## Many runs
#
# A run is a function of arrays: `jax.vmap` computes many runs at once, and `jax.grad` differentiates a run. The next
# cell computes the energy $E_\beta = \frac{1}{2\beta n^2}\sum_{ij} e^{\beta\langle x_i, x_j\rangle}$ and the number of
# clusters of each run over time. The energy has its maximum, $e^\beta/(2\beta)$, where all tokens are equal (dashed
# line).


# %%
def run(key):
    xs = cjx.simulate(field, cjx.Sphere().sample(key, n=n, d=d), ts).xs
    energy = jax.vmap(lambda x: cjx.interaction_energy(x, beta))(xs)
    clusters = jax.vmap(lambda x: cjx.num_clusters(x, radius=0.1))(xs)
    return energy, clusters


energy, clusters = jax.jit(jax.vmap(run))(jax.random.split(key, starts))
fig, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.5), layout="constrained")
left.plot(ts, energy.T, color=plot.OKABE_ITO[0], alpha=0.4, lw=0.8)
left.axhline(np.exp(beta) / (2 * beta), color="0.4", ls="--", lw=0.8)
left.set(xlabel="time t", ylabel=r"energy $E_\beta$")
right.plot(ts, clusters.T, color=plot.OKABE_ITO[0], alpha=0.4, lw=0.8)
right.set(xlabel="time t", ylabel="clusters at radius 0.1")
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# For every start, the energy never falls from one saved time to the next, and all tokens are in one cluster at the end.

# %%
change = jnp.diff(energy) / energy[:, 1:]  # from one saved time to the next
print(f"smallest relative change of the energy: {float(change.min()):.1e}")
print("clusters at the end:", clusters[:, -1].tolist())
assert float(change.min()) > -1e-6, "the energy falls by more than the tolerance of the solver"
assert bool(jnp.all(clusters[:, -1] == 1)), "some run does not end in one cluster"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Theorem 6.1 is about three or more dimensions. On the circle, d = 2, Polyanskiy, Rigollet and Yao
#   ([2507.22857](https://arxiv.org/abs/2507.22857)) prove the same for every $\beta \ge 0$.
# - V can differ from the identity: see the notebook [03_value_spectrum](03_value_spectrum.ipynb).
# - The theorem holds for "almost every start" because there are exceptions: two opposite tokens do not move.

# %% [markdown]
# ## Three questions
#
# **1. Sharper attention.** Set `beta = 9.0` in the first code cell and run all cells again. Which of the two assertions
# fails? Does the failure contradict the theorem?
#
# <details><summary>Answer</summary>
#
# The assertion about the number of clusters fails: several clusters remain at t = 15. The energy still never falls.
# There is no contradiction, because the theorem is about infinite time: clusters merge after a time that grows
# exponentially in $\beta$ ([02_metastable_clusters](02_metastable_clusters.ipynb) measures this time).
#
# ```python
# sharp = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(9.0)), x0, ts).xs
# sharp_energy = jax.vmap(lambda x: cjx.interaction_energy(x, 9.0))(sharp)
# print("clusters at t = 15:", int(cjx.num_clusters(sharp[-1], radius=0.1)))
# print(f"smallest relative change of the energy: {float((jnp.diff(sharp_energy) / sharp_energy[1:]).min()):.1e}")
# assert int(cjx.num_clusters(sharp[-1], radius=0.1)) > 1
# assert float((jnp.diff(sharp_energy) / sharp_energy[1:]).min()) > -1e-6
# ```
#
# </details>
#
# **2. The place of the cluster.** Let each token attend only to itself and to the tokens before it
# (`mask=cjx.CausalMask()`). The tokens still become one cluster. Which point of the sphere is the place of this
# cluster?
#
# <details><summary>Answer</summary>
#
# The place is the first token. The first token attends only to itself, so it never moves, and all other tokens converge
# to it ([01_causal_leader](01_causal_leader.ipynb) measures the rate).
#
# ```python
# causal = cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=cjx.CausalMask()))
# last = cjx.simulate(causal, x0, jnp.array([0.0, 60.0])).xs[-1]
# away = jnp.linalg.norm(last - x0[0], axis=1)
# print(f"largest distance of a token from the start of the first token: {float(away.max()):.1e}")
# assert float(away.max()) < 1e-2
# ```
#
# </details>
#
# **3. A kernel of your own.** Let a token attend only to tokens at an angle of less than 60 degrees, with equal
# weights: `cjx.KernelAttention(lambda s: ...)`, where s is the inner product of the two tokens. Do all tokens still
# become one cluster?
#
# <details><summary>Answer</summary>
#
# Not from every start: two clusters at an angle of more than 60 degrees do not attend to each other, so neither of them
# ever moves. The theorem needs a kernel that is positive everywhere. (The kernel is discontinuous, so the solver takes
# many small steps.)
#
# ```python
# near = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0))
# groups = jnp.concatenate([jnp.eye(3) + 0.1 * jax.random.normal(one, (3, 3)) for one in jax.random.split(key, 4)])
# last = cjx.simulate(cjx.AttentionField(near), groups, jnp.array([0.0, 60.0])).xs[-1]
# print("clusters at the end:", int(cjx.num_clusters(last, radius=0.1)))
# assert int(cjx.num_clusters(last, radius=0.1)) == 3
# ```
#
# </details>
