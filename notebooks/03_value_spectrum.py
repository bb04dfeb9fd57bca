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
# # The leading eigenvalue of V decides whether tokens gather, turn together or spread
#
# With V = I tokens gather. Trained value matrices are not the identity: their eigenvalues are of both signs, and most
# are complex. Geshkovski, Letrouit, Polyanskiy and Rigollet ([2305.05465](https://arxiv.org/abs/2305.05465)) sort the
# limits by the spectrum of V, for tokens in $\mathbb R^d$; Figures 5 and 6 of *Clustering in Transformers* show V = -I.
# Here, on the sphere, the three cases that an eigenvalue can be: positive, one of a complex pair, negative.

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
n, d, starts, beta = (16 if SMALL else 32), 3, (4 if SMALL else 32), 1.0
key = jax.random.key(2305)

# %% [markdown]
# ## Three matrices
#
# Equal but for the leading block, and seen in a frame that is turned at random: $V = O\, D\, O^\top$ with orthogonal
# O. The complex pair is $1 \pm 2i$.

# %%
OMEGA = 2.0
frame = jnp.linalg.qr(jax.random.normal(key, (d, d)))[0]
blocks = {
    "gather": [[1.0, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, -0.5]],
    "turn": [[1.0, -OMEGA, 0.0], [OMEGA, 1.0, 0.0], [0.0, 0.0, -0.5]],
    "spread": [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]],
}
values = {name: frame @ jnp.array(block) @ frame.T for name, block in blocks.items()}
for name, value in values.items():
    print(f"{name:>6}: eigenvalues", np.round(np.asarray(cjx.spectrum(value)), 3))

# %% [markdown]
# ## One run of each


# %%
def simulate(value, x0, ts):
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta), value), x0, ts)


x0 = cjx.Sphere().sample(key, n=n, d=d)
shown = jnp.array([0.0, 4.0, 20.0])
fig, axes = plt.subplots(3, 3, figsize=(4.4, 4.8), layout="constrained")
for row, value in zip(axes, values.values(), strict=True):
    plot.snapshots(simulate(value, x0, shown), times=shown, axes=row, highlight=0)
plt.show()

# %% [markdown]
# *From above: a positive eigenvalue, a complex pair, a negative one. The first token, red, is only there to be
# followed.* How they turn, in a film that can be turned itself:

# %%
turning = simulate(values["turn"], x0, jnp.linspace(0.0, 16.0, 81))
plot.player(turning, highlight=0, radius=0.1, title="eigenvalues 1 + 2i, 1 - 2i, -1/2", height=380)

# %% [markdown]
# ## Many runs
#
# The length of the mean token is 1 if all are one, and near 0 if they are spread, or at two opposite ends.

# %%
ts = jnp.linspace(0.0, 40.0, 161)


def run(value, key):
    return simulate(value, cjx.Sphere().sample(key, n=n, d=d), ts).xs


many = jax.jit(jax.vmap(run, in_axes=(None, 0)))
keys = jax.random.split(key, starts)
runs = {name: np.asarray(many(value, keys)) for name, value in values.items()}
lengths = {name: np.linalg.norm(xs.mean(axis=2), axis=-1) for name, xs in runs.items()}  # of the mean token
fig, ax = plt.subplots(figsize=(5.4, 2.6), layout="constrained")
for (name, length), colour, line in zip(lengths.items(), plot.OKABE_ITO, ("-", "--", ":"), strict=False):
    ax.plot(ts, length.T, color=colour, ls=line, alpha=0.35, lw=0.8)
    ax.plot([], [], color=colour, ls=line, label=name)
ax.set(xlabel="time t", ylabel="length of the mean token", ylim=(0, 1.02))
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# *Gather*: at equal tokens the velocity is $P_x V x$, the power iteration in continuous time, so that every token ends
# on the axis of the leading eigenvector. Often at both ends of it: the mean token may have any length. *Turn*: the same
# power iteration finds the plane of the pair, and turns in it at the imaginary part. *Spread*: no token finds another,
# and the mean token vanishes.

# %%
axis, plane = frame[:, 0], np.asarray(frame[:, :2])
on_axis = np.abs(runs["gather"][:, -1] @ axis)
ends = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["gather"][:, -1]]
print(f"gather: every token within {np.degrees(np.arccos(np.minimum(on_axis.min(), 1))):.2g} degrees of the axis;")
print(f"        both ends of it are taken in {ends.count(2)} of {starts} runs")
x, y = np.moveaxis(runs["turn"].mean(axis=2) @ plane, -1, 0)
angle = np.unwrap(np.arctan2(y, x), axis=1)
late = len(ts) // 2
rate = (angle[:, -1] - angle[:, late]) / float(ts[-1] - ts[late])
together = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["turn"][:, -1]]
print(f"turn:   one cluster in {together.count(1)} of {starts} runs, turning at {rate.mean():.6f} +- {rate.std():.1e}")
apart = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["spread"][:, -1]]
print(
    f"spread: mean token of length {lengths['spread'][:, -1].max():.1e} at most, at least {min(apart)} clusters of {n}"
)
assert on_axis.min() > 0.999 and set(ends) <= {1, 2}
assert together == [1] * starts and np.abs(rate - OMEGA).max() < 1e-3
assert lengths["spread"][:, -1].max() < 0.02 and min(apart) > 0.7 * n

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `beta = 4.0`: the turning tokens are in two or three clusters for long, and all of these turn at the same rate.
# - The theorems ask for one V and all times. A network has another V in every layer and head, 30 layers or so:
#   `probe.head_signs` sorts them ([08_causal_network](08_causal_network.ipynb)), and what their mixture does no theorem
#   says.
# - Under a causal mask the first token never gives way: `clusterjax reproduce figure5` asks what V = -I does then.
#
# ## Exercises
#
# **1. Undo.** With -V in place of V every velocity is the opposite one. Let V be I up to t = 4 and -I from then on
# (`cjx.PiecewiseConstant`), and say where every token is at t = 8.
#
# <details><summary>Answer</summary>
#
# Where it was at t = 0: the flow is run backwards. What the solver lost on the way there is magnified on the way back,
# so that this works while no two tokens have met.
#
# ```python
# there_and_back = cjx.PiecewiseConstant([0.0, 4.0], jnp.stack([jnp.eye(d), -jnp.eye(d)]))
# xs = simulate(there_and_back, x0, jnp.array([0.0, 4.0, 8.0])).xs
# print("length of the mean token at t = 0, 4, 8:", np.round(jnp.linalg.norm(xs.mean(axis=1), axis=-1), 3))
# print(f"distance from the start at t = 8: {float(jnp.abs(xs[2] - x0).max()):.1e}")
# assert float(jnp.abs(xs[1] - x0).max()) > 0.5 and float(jnp.abs(xs[2] - x0).max()) < 1e-3
# ```
#
# </details>
#
# **2. Two equal eigenvalues.** With the eigenvalues 1, 1 and -1/2 there is no leading axis. Where do the tokens end,
# and what decides it?
#
# <details><summary>Answer</summary>
#
# In the plane of the two, in one point: within it V is the identity, and the rest is gone. Which point depends on the
# start.
#
# ```python
# double = frame @ jnp.diag(jnp.array([1.0, 1.0, -0.5])) @ frame.T
# last = many(double, keys)[:, -1]
# places = np.degrees(np.arctan2(*np.moveaxis(np.asarray(last.mean(axis=1) @ plane), -1, 0)[::-1]))
# print("angles within the plane, of some starts:", np.round(places[:6]))
# assert float(jnp.abs(last @ frame[:, 2]).max()) < 1e-2
# assert all(int(cjx.num_clusters(x, radius=0.1)) == 1 for x in last) and np.ptp(places) > 10
# ```
#
# </details>
