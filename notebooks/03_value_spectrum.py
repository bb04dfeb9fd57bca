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
# With V = I tokens gather. Trained value matrices differ from the identity: their eigenvalues have both signs, and most
# of them are complex. Geshkovski, Letrouit, Polyanskiy and Rigollet ([2305.05465](https://arxiv.org/abs/2305.05465))
# classify the limits of tokens in $\mathbb R^d$ by the spectrum of V; Figures 5 and 6 of *Clustering in Transformers*
# show V = -I. This notebook takes tokens on the sphere, and the three kinds of a leading eigenvalue (the one with the
# largest real part): positive, one of a complex pair, and negative.
#
# **This notebook shows** one run for each kind in pictures, then many runs, and asserts where the tokens end and how
# fast they turn.
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
n, d, starts, beta = (16 if SMALL else 32), 3, (4 if SMALL else 32), 1.0
key = jax.random.key(2305)

# %% [markdown]
# ## Three matrices
#
# The matrices are $V = O\, D\, O^\top$ with one random orthogonal matrix O and three block-diagonal matrices D. The
# complex pair is $1 \pm 2i$.

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
# *The rows from top to bottom show a positive eigenvalue, a complex pair and a negative eigenvalue. The first token is
# red, so that the eye can follow it.* The next cell plays the run that turns:

# %%
turning = simulate(values["turn"], x0, jnp.linspace(0.0, 16.0, 81))
plot.player(turning, highlight=0, radius=0.1, title="eigenvalues 1 + 2i, 1 - 2i, -1/2", height=380)

# %% [markdown]
# ## Many runs
#
# The norm of the mean token is 1 if all tokens are equal, and near 0 if the tokens are spread, or divided between two
# opposite points.

# %%
ts = jnp.linspace(0.0, 40.0, 161)


def run(value, key):
    return simulate(value, cjx.Sphere().sample(key, n=n, d=d), ts).xs


many = jax.jit(jax.vmap(run, in_axes=(None, 0)))
keys = jax.random.split(key, starts)
runs = {name: np.asarray(many(value, keys)) for name, value in values.items()}
norms = {name: np.linalg.norm(xs.mean(axis=2), axis=-1) for name, xs in runs.items()}  # of the mean token
fig, ax = plt.subplots(figsize=(5.4, 2.6), layout="constrained")
for (name, norm), colour, line in zip(norms.items(), plot.OKABE_ITO, ("-", "--", ":"), strict=False):
    ax.plot(ts, norm.T, color=colour, ls=line, alpha=0.35, lw=0.8)
    ax.plot([], [], color=colour, ls=line, label=name)
ax.set(xlabel="time t", ylabel="norm of the mean token", ylim=(0, 1.02))
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# *Gather*: the velocity of equal tokens is $P_x V x$, which is the power iteration in continuous time, so every token
# ends on the axis of the leading eigenvector. In many runs some tokens end at one end of the axis and some at the
# other, so the mean token can have any norm. *Turn*: the power iteration finds the plane of the complex pair, and turns
# in this plane at the rate of the imaginary part. *Spread*: the tokens repel each other, and the mean token vanishes.

# %%
axis, plane = frame[:, 0], np.asarray(frame[:, :2])
on_axis = np.abs(runs["gather"][:, -1] @ axis)
ends = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["gather"][:, -1]]
print(f"gather: every token is within {np.degrees(np.arccos(np.minimum(on_axis.min(), 1))):.2g} degrees of the axis;")
print(f"        tokens are at both ends of the axis in {ends.count(2)} of {starts} runs")
x, y = np.moveaxis(runs["turn"].mean(axis=2) @ plane, -1, 0)
angle = np.unwrap(np.arctan2(y, x), axis=1)
late = len(ts) // 2
rate = (angle[:, -1] - angle[:, late]) / float(ts[-1] - ts[late])
together = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["turn"][:, -1]]
print(f"turn:   one cluster in {together.count(1)} of {starts} runs; it turns at the rate {rate.mean():.6f}")
apart = [int(cjx.num_clusters(x, radius=0.1)) for x in runs["spread"][:, -1]]
print(f"spread: the norm of the mean token is at most {norms['spread'][:, -1].max():.1e};")
print(f"        {n} tokens are in at least {min(apart)} clusters")
assert on_axis.min() > 0.999 and set(ends) <= {1, 2}
assert together == [1] * starts and np.abs(rate - OMEGA).max() < 1e-3
assert norms["spread"][:, -1].max() < 0.02 and min(apart) > 0.7 * n

# %% [markdown]
# ## What to vary, and what does not hold
#
# - With `beta = 4.0` the turning tokens stay in two or three clusters for a long time, and all these clusters turn at
#   the same rate.
# - The theorems are about one V and infinite time. A network has another V in every layer and head, and about 30
#   layers: `probe.head_signs` classifies its heads ([08_causal_network](08_causal_network.ipynb)), but no theorem is
#   about their mixture.
# - Under a causal mask the first token never moves away: `clusterjax reproduce figure5` shows V = -I with this mask.

# %% [markdown]
# ## Three questions
#
# **1. Back to the start.** With -V in place of V every velocity has the opposite sign. Let V be I up to t = 4 and -I
# from t = 4 on (`cjx.PiecewiseConstant`). Where is every token at t = 8?
#
# <details><summary>Answer</summary>
#
# Every token is where it was at t = 0, because the second half runs the first half backwards. The way back magnifies
# the errors of the solver, so the experiment succeeds only while no two tokens have met.
#
# ```python
# there_and_back = cjx.PiecewiseConstant([0.0, 4.0], jnp.stack([jnp.eye(d), -jnp.eye(d)]))
# xs = simulate(there_and_back, x0, jnp.array([0.0, 4.0, 8.0])).xs
# print("norm of the mean token at t = 0, 4, 8:", np.round(jnp.linalg.norm(xs.mean(axis=1), axis=-1), 3))
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
# The tokens end at one point of the plane of the two equal eigenvalues: the component outside the plane decays, and V
# is the identity within the plane. The start decides which point of the plane it is.
#
# ```python
# double = frame @ jnp.diag(jnp.array([1.0, 1.0, -0.5])) @ frame.T
# last = many(double, keys)[:, -1]
# places = np.degrees(np.arctan2(*np.moveaxis(np.asarray(last.mean(axis=1) @ plane), -1, 0)[::-1]))
# print("angles of the clusters within the plane, for six starts:", np.round(places[:6]))
# assert float(jnp.abs(last @ frame[:, 2]).max()) < 1e-2
# assert all(int(cjx.num_clusters(x, radius=0.1)) == 1 for x in last) and np.ptp(places) > 10
# ```
#
# </details>
#
# **3. Spread and turn.** Give V the eigenvalues $-1 \pm 2i$ and $-1$. The tokens spread. Do they also turn, and if so,
# at the rate 2?
#
# <details><summary>Answer</summary>
#
# They turn, but more slowly. A token turns by V times its weighted mean of the tokens. The mean of uniformly spread
# tokens with the weights $e^{\beta\langle x_i, x_j\rangle}$ is $(\coth\beta - 1/\beta)\, x_i$, so the rate is
# $2\,(\coth\beta - 1/\beta)$, which is smaller than 2 for every $\beta$, and tends to 2 for large $\beta$. The formula
# is about infinitely many tokens, so a finite number of tokens follows it only approximately.
#
# ```python
# both = frame @ jnp.array([[-1.0, -OMEGA, 0.0], [OMEGA, -1.0, 0.0], [0.0, 0.0, -1.0]]) @ frame.T
# spread_and_turn = np.asarray(many(both, keys))
# across = spread_and_turn @ plane
# turned = np.unwrap(np.arctan2(across[..., 1], across[..., 0]), axis=1)
# median = float(np.median((turned[:, -1] - turned[:, late]) / float(ts[-1] - ts[late])))
# expected = OMEGA * (1 / np.tanh(beta) - 1 / beta)
# print(f"norm of the mean token: {np.linalg.norm(spread_and_turn[:, -1].mean(axis=1), axis=-1).max():.1e} at most")
# print(f"median rate of turning: {median:.3f}; for infinitely many tokens {expected:.3f}")
# assert abs(median / expected - 1) < 0.05
# ```
#
# </details>
