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
# # Under causal attention every token converges to the first token, at rate exactly 1/2 for every Q and K
#
# *Clustering in Transformers*, Section 4.2.1 and Figure 3: with $V = I$ the tokens of a causal head gather in a single
# cluster. Karagodin, Polyanskiy and Rigollet ([2411.04990](https://arxiv.org/abs/2411.04990), Theorem 4.1) prove that
# this cluster is at the first token, which never moves. The linearisation at consensus (all tokens equal) gives the
# rate. Token $k$ attends to itself and its predecessors with weights $1/k$, so the Jacobian is triangular with
# eigenvalues $-(k-1)/k$. The slowest decay, $-1/2$, is that of the second token. Neither $Q$, $K$ nor $\beta$ occurs in
# these eigenvalues.
#
# **This notebook shows** one run in pictures, measures the rate in many runs with random Q and K, and asserts that the
# rate is 1/2 in each of them.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot]' jupyterlab`. The notebook
# needs no other file, and runs in less than two minutes on two cores.

# %%
import os

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)  # the distances decay to 1e-7
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
sizes = {"n": 16 if SMALL else 64, "d": 3, "starts": 4 if SMALL else 32, "t1": 32.0}
key = jr.key(2411)

# %% [markdown]
# ## The model
#
# $$\dot x_k = P_{x_k}\Big(\frac{1}{Z_k}\sum_{j \le k} e^{\beta \langle Q x_k, K x_j\rangle} x_j\Big), \qquad
# P_x v = v - \langle x, v\rangle x .$$
#
# Each run draws new Gaussian matrices $Q$ and $K$; $\beta = 1$ and $V = I$.


# %%
def make_field(key):
    query, kernel = jr.normal(key, (2, sizes["d"], sizes["d"]))
    form = cjx.query_key_form(query, kernel)
    return cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=form, mask=cjx.CausalMask()))


# %% [markdown]
# ## One run
#
# The default tolerances of the solver (rtol 1e-6, atol 1e-8) are sufficient for a picture.

# %%
field_key, start_key, many_key = jr.split(key, 3)
x0 = cjx.Sphere().sample(start_key, sizes["n"], sizes["d"])
trajectory = cjx.simulate(make_field(field_key), x0, jnp.array([0.0, 3.0, 6.0, 12.0]))
print("steps taken:", int(trajectory.stats["num_steps"]))
print("clusters at radius 0.1:", [int(cjx.num_clusters(x, 0.1)) for x in trajectory.xs])

# %%
fig, axes = plt.subplots(1, 4, figsize=(7.2, 2.1), layout="constrained")
plot.snapshots(trajectory, times=(0.0, 3.0, 6.0, 12.0), axes=axes, highlight=0)
plt.show()

# %% [markdown]
# *The tokens of one start gather at the first token (red), which does not move.*
#
# ## Many runs, each with its own Q, K and start
#
# One `vmap` computes all runs. The distance to the first token decays to about $e^{-16}$, and the rate needs accurate
# logarithms of this distance, so this cell sets smaller tolerances than the default.

# %%
ts = jnp.linspace(0.0, sizes["t1"], 65)
tight = dfx.PIDController(rtol=1e-10, atol=1e-12)


def distances(key):
    field_key, start_key = jr.split(key)
    x0 = cjx.Sphere().sample(start_key, sizes["n"], sizes["d"])
    run = cjx.simulate(make_field(field_key), x0, ts, stepsize_controller=tight)
    return jnp.linalg.norm(run.xs - run.xs[:, :1], axis=-1), jnp.max(jnp.abs(run.xs[:, 0] - x0[0]))


to_first, first_moved = eqx.filter_jit(eqx.filter_vmap(distances))(jr.split(many_key, sizes["starts"]))
print("largest distance that a first token moved:", float(first_moved.max()))

# %%
fig, ax = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
for token, colour in ((1, plot.OKABE_ITO[5]), (sizes["n"] - 1, plot.OKABE_ITO[0])):
    ax.semilogy(ts, to_first[:, :, token].T, color=colour, alpha=0.35, lw=0.8)
    ax.plot([], [], color=colour, label=f"token {token + 1}")
ax.semilogy(ts, 2 * np.exp(-ts / 2), "k--", lw=1.2, label=r"$2e^{-t/2}$")
ax.set(xlabel="time t", ylabel="distance to the first token")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The claim, asserted
#
# The rate is the slope of $\log |x_2 - x_1|$ over the last quarter of the run. All later tokens have the same rate in
# the limit, but approach it more slowly (the first correction of the third token decays like $e^{-t/6}$), so the second
# token is the best one to measure. Some tokens are still far from the first token at the end of the run: where Q and K
# give nearly all the weight of a token to the token itself, the token moves slowly.

# %%
late = slice(3 * len(ts) // 4, None)
rates = -np.polyfit(np.asarray(ts)[late], np.log(np.asarray(to_first)[:, late, 1]).T, 1)[0]
print(f"rate of the second token: {rates.mean():.6f} +- {rates.std() / np.sqrt(rates.size):.6f}")
gathered = to_first[:, -1] < 0.1
print(f"tokens within 0.1 of the first token at t = {float(ts[-1]):g}: {float(gathered.mean()):.1%}")
assert float(first_moved.max()) < 1e-12
assert np.abs(np.median(rates) - 0.5) < 1e-4
assert np.all(np.abs(rates - 0.5) < 5e-3)

# %% [markdown]
# ## What to vary, and what does not hold
#
# - With another `beta`, or with Q and K ten times as large, the rate is the same, but the decay begins at another time.
#   For large $\beta$ the run stays near states of several clusters for a time that grows exponentially in $\beta$.
# - With $V = -I$ the first token repels the others, and the limits are not one point (Figures 5 and 6 of the paper).
# - The paper's "$\beta = 9 \ge \sqrt{64}$" compares an inverse temperature with the number of tokens; the threshold
#   $\sqrt d$ that the paper names is about the dimension, which is 3 here.

# %% [markdown]
# ## Three questions
#
# **1. All rates.** The linearisation at consensus is a matrix. Compute this matrix with `jax.jacfwd`, for any Q and K;
# it is sufficient to shift the tokens along one tangent direction. Are its eigenvalues $-(k-1)/k$?
#
# <details><summary>Answer</summary>
#
# The matrix is lower triangular, and its diagonal contains the rates. Q and K have no influence, because all scores of
# a row are equal at consensus: token k gives the weight 1/k to itself and to each predecessor.
#
# ```python
# pole = jnp.tile(jnp.array([0.0, 0.0, 1.0]), (6, 1))
#
#
# def linearised(field):
#     along_shifts = lambda shifts: field(0.0, pole.at[:, 0].set(shifts), None)[:, 0]
#     return np.asarray(jax.jacfwd(along_shifts)(jnp.zeros(6)))
#
#
# jacobian = linearised(make_field(field_key))
# print(np.round(jacobian, 3))
# places = np.arange(1, 7)
# np.testing.assert_allclose(np.triu(jacobian, 1), 0, atol=1e-12)
# np.testing.assert_allclose(np.diag(jacobian), -(places - 1) / places, atol=1e-12)
# ```
#
# </details>
#
# **2. Without the mask.** Remove `mask=cjx.CausalMask()`, so that every token attends to all tokens. Predict the rate
# at which the tokens now approach each other. Do you expect a larger or a smaller rate than 1/2?
#
# <details><summary>Answer</summary>
#
# The rate is 1, twice as large: at consensus each token moves towards the mean of all tokens, so every difference of
# two tokens decays like $e^{-t}$. The eigenvalue 0 belongs to a shift of all tokens together: no token is fixed, and
# the place of the cluster depends on the start. (`linearised` is the function of the first answer.)
#
# ```python
# full = cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=jr.normal(key, (3, 3))))
# eigenvalues = np.sort(np.linalg.eigvals(linearised(full)).real)
# print("eigenvalues without the mask:", np.round(eigenvalues, 6))
# np.testing.assert_allclose(eigenvalues, [-1, -1, -1, -1, -1, 0], atol=1e-6)
# ```
#
# </details>
#
# **3. A short window.** With `cjx.WindowMask(2, causal=True)` each token attends only to itself and to its predecessor.
# What are the rates now? Do the last tokens of a long text arrive at the first token as early as with the causal mask?
#
# <details><summary>Answer</summary>
#
# All rates except that of the first token are 1/2, but they form one Jordan chain: the distance of token k decays like
# $t^{k-2} e^{-t/2}$. The influence of the first token travels one token at a time, so at t = 12 the last tokens of the
# text have not yet arrived. (`linearised` is the function of the first answer.)
#
# ```python
# window = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.WindowMask(2, causal=True)))
# jacobian = linearised(window)
# print(np.round(jacobian, 3))
# chain = 0.5 * (np.eye(6, k=-1) - np.eye(6))
# chain[0] = 0
# np.testing.assert_allclose(jacobian, chain, atol=1e-12)
# x12 = cjx.simulate(window, x0, jnp.array([0.0, 12.0])).xs[-1]
# away = [float(jnp.linalg.norm(x[1:] - x0[0], axis=1).mean()) for x in (x12, trajectory.xs[-1])]
# print(f"mean distance to the first token at t = 12: window {away[0]:.2f}, causal {away[1]:.2f}")
# assert away[0] > away[1]
# ```
#
# </details>
