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
# # Under causal attention every token follows the first one, at rate exactly 1/2, whatever Q and K
#
# *Clustering in Transformers*, Section 4.2.1 and Figure 3: with $V = I$ the tokens of a causal head gather in a single
# cluster. Karagodin, Polyanskiy and Rigollet ([2411.04990](https://arxiv.org/abs/2411.04990), Theorem 4.1) prove where:
# at the first token, which never moves. Linearising at consensus says how fast: token $k$ sees itself and its
# predecessors with weights $1/k$, so that the Jacobian is triangular with eigenvalues $-(k-1)/k$, and the slowest of
# them, $-1/2$, belongs to the second token. Neither $Q$, $K$ nor $\beta$ appears in it. This notebook measures the
# rate.

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


jax.config.update("jax_enable_x64", True)  # rates are read off distances down to 1e-7
SMALL = bool(os.environ.get("SMALL"))
sizes = {"n": 16 if SMALL else 64, "d": 3, "starts": 4 if SMALL else 32, "t1": 32.0}
key = jr.key(2411)

# %% [markdown]
# ## The model
#
# $$\dot x_k = P_{x_k}\Big(\frac{1}{Z_k}\sum_{j \le k} e^{\beta \langle Q x_k, K x_j\rangle} x_j\Big), \qquad
# P_x v = v - \langle x, v\rangle x .$$
#
# $Q$ and $K$ are Gaussian, drawn anew for each run; $\beta = 1$; $V = I$.


# %%
def make_field(key):
    query, kernel = jr.normal(key, (2, sizes["d"], sizes["d"]))
    form = cjx.query_key_form(query, kernel)
    return cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=form, mask=cjx.CausalMask()))


# %% [markdown]
# ## One run
#
# The default tolerances (rtol 1e-6, atol 1e-8) are ample for a picture.

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
# *One start: the tokens gather at the first token (red), which stays where it was.*
#
# ## Many runs, each with its own Q, K and start
#
# One `vmap`. The distance to the first token falls to about $e^{-t/2}$, far below the default tolerances, so the solver
# is given tighter ones: tolerances are not accuracy, and a rate needs the digits.

# %%
ts = jnp.linspace(0.0, sizes["t1"], 65)
tight = dfx.PIDController(rtol=1e-10, atol=1e-12)


def distances(key):
    field_key, start_key = jr.split(key)
    x0 = cjx.Sphere().sample(start_key, sizes["n"], sizes["d"])
    run = cjx.simulate(make_field(field_key), x0, ts, stepsize_controller=tight)
    return jnp.linalg.norm(run.xs - run.xs[:, :1], axis=-1), jnp.max(jnp.abs(run.xs[:, 0] - x0[0]))


to_first, first_moved = eqx.filter_jit(eqx.filter_vmap(distances))(jr.split(many_key, sizes["starts"]))
print("distance that a first token moved, at most:", float(first_moved.max()))

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
# The rate is the slope of $\log |x_2 - x_1|$ over the last quarter of the run. Later tokens end at the same rate but
# get there later (their first correction decays like $e^{-t/6}$ only), so that the second one is the one to measure. A
# few tokens are still far away at the end: where Q and K make a token see hardly anyone but itself, it waits.

# %%
late = slice(3 * len(ts) // 4, None)
rates = -np.polyfit(np.asarray(ts)[late], np.log(np.asarray(to_first))[:, late, 1].T, 1)[0]
print(f"rate of the second token: {rates.mean():.6f} +- {rates.std() / np.sqrt(rates.size):.6f}")
gathered = to_first[:, -1] < 0.1
print(f"tokens within 0.1 of the first at t = {float(ts[-1]):g}: {float(gathered.mean()):.1%}")
assert float(first_moved.max()) < 1e-12
assert np.all(np.abs(np.median(rates) - 0.5) < 1e-4)
assert np.all(np.abs(rates - 0.5) < 5e-3)

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Another `beta`, or Q and K ten times as large: the rate stays, the time until it sets in does not. At large
#   $\beta$ the run sits on plateaus with several clusters for a time that grows exponentially in $\beta$.
# - $V = -I$: the first token repels, and the limits are not one point (Figures 5 and 6).
# - The paper's "$\beta = 9 \ge \sqrt{64}$" compares an inverse temperature with the number of tokens; the threshold
#   $\sqrt d$ that it names is about the dimension, here 3.
# - $d = 1$ is excluded: on two points nothing can move.
#
# ## Exercises
#
# **1. All the rates.** The linearisation at consensus is a matrix: take it with `jax.jacfwd` and compare its
# eigenvalues with $-(k-1)/k$. Tokens that are shifted a little along one tangent direction are enough, and any Q and K
# will do.
#
# <details><summary>Answer</summary>
#
# The rates are those of a token that sees k equal tokens, its own weight 1/k left out. The form is nowhere in them: at
# consensus all scores of a row are equal.
#
# ```python
# pole = jnp.tile(jnp.array([0.0, 0.0, 1.0]), (6, 1))
# of_shifts = lambda shifts: make_field(field_key)(0.0, pole.at[:, 0].set(shifts), None)[:, 0]
# jacobian = jax.jacfwd(of_shifts)(jnp.zeros(6))
# print(np.round(jacobian, 3))
# places = np.arange(1, 7)
# np.testing.assert_allclose(np.triu(jacobian, 1), 0, atol=1e-12)
# np.testing.assert_allclose(np.diag(jacobian), -(places - 1) / places, atol=1e-12)
# ```
#
# </details>
#
# **2. A short memory.** With `cjx.WindowMask(2, causal=True)` each token sees itself and its predecessor alone. Which
# rates are there now, and do the last tokens of a long text arrive as early as before?
#
# <details><summary>Answer</summary>
#
# All rates but the first are 1/2, in one Jordan chain: token k falls like $t^{k-2} e^{-t/2}$, and news of the first
# token travels along the text one token at a time. At t = 12 the far tokens have not arrived.
#
# ```python
# window = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.WindowMask(2, causal=True)))
# jacobian = jax.jacfwd(lambda shifts: window(0.0, pole.at[:, 0].set(shifts), None)[:, 0])(jnp.zeros(6))
# np.testing.assert_allclose(jacobian, 0.5 * (np.eye(6, k=-1) - np.eye(6)) + 0.5 * np.eye(6)[:, :1] * np.eye(6)[:1])
# x12 = cjx.simulate(window, x0, jnp.array([0.0, 12.0])).xs[-1]
# away = [float(jnp.linalg.norm(x[1:] - x0[0], axis=1).mean()) for x in (x12, trajectory.xs[-1])]
# print(f"mean distance to the first token at t = 12: window {away[0]:.2f}, causal {away[1]:.2f}")
# assert away[0] > away[1]
# ```
#
# </details>
