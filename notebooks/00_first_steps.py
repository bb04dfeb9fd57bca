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
# # Tokens that attend to one another become one, and their energy never falls
#
# First steps. Attention moves each token towards an average of the others, with more weight on those which are like it;
# layer normalisation keeps the tokens on a sphere; depth is time. Geshkovski, Letrouit, Polyanskiy and Rigollet
# ([2312.10794](https://arxiv.org/abs/2312.10794)) prove what comes of it: in three dimensions or more, for every
# inverse temperature $\beta$ and almost every start, all tokens end in one point (Theorem 6.1), and on the way an
# energy rises (Section 3.4). This notebook runs it, looks at it, and asserts both.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)  # float64; without this line all of it runs in float32
SMALL = bool(os.environ.get("SMALL"))
n, d, starts = (16, 3, 4) if SMALL else (64, 3, 32)
beta = 1.0
key = jax.random.key(0)

# %% [markdown]
# ## The model
#
# $$\dot x_i = P_{x_i}\Big(\sum_j \frac{e^{\beta \langle x_i, x_j\rangle}}{\sum_k e^{\beta \langle x_i, x_k\rangle}}
# \, x_j\Big), \qquad P_x v = v - \langle x, v\rangle x .$$
#
# `SoftmaxAttention` is who looks at whom; `AttentionField` is the velocity $\dot x$, on the sphere unless it is told
# otherwise. A matrix V, a form $Q^\top K$, a mask or masses of the tokens are further arguments of these two.

# %%
attention = cjx.SoftmaxAttention(beta)
field = cjx.AttentionField(attention)
x0 = cjx.Sphere().sample(key, n=n, d=d)
print("tokens:", x0.shape, x0.dtype)
print("weights of token 1, largest first:", np.round(np.sort(attention.weights(x0)[0])[::-1][:4], 3))
print("they sum to", float(attention.weights(x0)[0].sum()))

# %% [markdown]
# ## One run
#
# `simulate` takes the field, the tokens and the times at which it shall save them, chooses its steps by itself, and
# returns a trajectory: `ts`, `xs`, and what it cost in `stats`.

# %%
ts = jnp.linspace(0.0, 15.0, 31)
trajectory = cjx.simulate(field, x0, ts)
print("saved:", trajectory.xs.shape, "in", int(trajectory.stats["num_steps"]), "steps")
for t in (0.0, 3.0, 6.0, 15.0):
    x = trajectory.xs[int(jnp.argmin(jnp.abs(ts - t)))]
    print(f"t = {t:4g}: {int(cjx.num_clusters(x, radius=0.1)):3d} clusters at radius 0.1")

# %%
plot.snapshots(trajectory, times=(0.0, 3.0, 6.0, 15.0))
plt.show()

# %% [markdown]
# *Equal tokens have equal velocities, so that a cluster never divides.* The same run as a film; it can be turned, and
# the slider is the time. `plot.player(trajectory, "run.html")` writes it as a page that needs nothing else.

# %%
plot.player(trajectory, radius=0.1, title=f"beta = {beta:g}", height=380)

# %% [markdown]
# ## Many runs
#
# `simulate` is a function of arrays: `jax.vmap` runs it for many starts at once, `jax.grad` differentiates it. Here the
# energy $E_\beta = \frac{1}{2\beta n^2}\sum_{ij} e^{\beta(\langle x_i, x_j\rangle - 1)}$ and the number of clusters of
# each run. The energy is largest, $1/(2\beta)$, where all tokens are one.


# %%
def run(key):
    xs = cjx.simulate(field, cjx.Sphere().sample(key, n=n, d=d), ts).xs
    energy = jax.vmap(lambda x: cjx.interaction_energy(x, beta))(xs)
    clusters = jax.vmap(lambda x: cjx.num_clusters(x, radius=0.1))(xs)
    return energy, clusters


energy, clusters = jax.jit(jax.vmap(run))(jax.random.split(key, starts))
fig, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.5), layout="constrained")
left.plot(ts, energy.T, color=plot.OKABE_ITO[0], alpha=0.4, lw=0.8)
left.axhline(1 / (2 * beta), color="0.4", ls="--", lw=0.8)
left.set(xlabel="time t", ylabel=r"energy $E_\beta$")
right.plot(ts, clusters.T, color=plot.OKABE_ITO[0], alpha=0.4, lw=0.8)
right.set(xlabel="time t", ylabel="clusters at radius 0.1")
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# Of every start: the energy never falls from one saved time to the next, and at the end there is one cluster.

# %%
print(f"smallest change of the energy: {float(jnp.diff(energy).min()):.1e}")
print("clusters at the end:", clusters[:, -1].tolist())
assert float(jnp.diff(energy).min()) > -1e-9
assert bool(jnp.all(clusters[:, -1] == 1))

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `beta = 9.0`: the tokens wait in a few clusters, for a time that grows exponentially in $\beta$; t = 15 is then far
#   too early ([02_metastable_clusters](02_metastable_clusters.ipynb)).
# - On the circle, d = 2, the theorem needs small $\beta$, or very large ones; it is open between.
# - V other than the identity: [03_value_spectrum](03_value_spectrum.ipynb).
# - "Almost every start": two tokens opposite to each other do not move.
#
# ## Exercises
#
# **1. Where?** Let each token see only itself and those before it (`mask=cjx.CausalMask()`). They still become one. At
# which place?
#
# <details><summary>Answer</summary>
#
# At the first token. It sees itself alone and never moves, and all others come to it
# ([01_causal_leader](01_causal_leader.ipynb) measures how fast).
#
# ```python
# causal = cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=cjx.CausalMask()))
# last = cjx.simulate(causal, x0, jnp.array([0.0, 60.0])).xs[-1]
# away = jnp.linalg.norm(last - x0[0], axis=1)
# print(f"the farthest token is {float(away.max()):.1e} from the place of the first")
# assert float(away.max()) < 1e-2
# ```
#
# </details>
#
# **2. A kernel of your own.** Let a token attend to those alone that are closer than 60 degrees, all of them alike:
# `cjx.KernelAttention(lambda s: ...)`, where s is the inner product. Do all tokens still become one?
#
# <details><summary>Answer</summary>
#
# Not if two clusters are farther apart than 60 degrees: they do not see each other, and each stays where it is for
# ever. The theorem is of kernels that are positive everywhere. (A jump of the kernel costs the solver many small
# steps.)
#
# ```python
# near = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0))
# spread = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
# groups = jnp.concatenate([spread + 0.1 * jax.random.normal(one, (3, 3)) for one in jax.random.split(key, 4)])
# last = cjx.simulate(cjx.AttentionField(near), groups, jnp.array([0.0, 60.0])).xs[-1]
# print("clusters at the end:", int(cjx.num_clusters(last, radius=0.1)))
# assert int(cjx.num_clusters(last, radius=0.1)) == 3
# ```
#
# </details>
