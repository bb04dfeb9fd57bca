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
# # With noise, infinitely many tokens gather below a critical temperature, and n tokens do as they do to $n^{-1/2}$
#
# The theorems about attention are about measures: tokens enter the velocity through their distribution $\mu$ alone.
# Where their number tends to infinity it has a density, which moves by
#
# $$\partial_t \mu + \nabla\cdot(\mu\, v[\mu]) = T\,\Delta\mu,$$
#
# with a temperature $T$ if tokens make Brownian motions besides. `MeanField` is this equation for the coefficients of
# the density in harmonics of the circle or the sphere: a field like any other, whose state is a matrix of coefficients.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import iv

import clusterjax as cjx
from clusterjax import plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))
BETA = 1.0
attention = cjx.UnnormalisedAttention(BETA)


def mean_field(temperature, degree=24):
    return cjx.MeanField(attention, d=2, degree=degree, temperature=temperature)


# %% [markdown]
# ## The uniform density, and when it is unstable
#
# A small wave of degree $k$ on the uniform density grows at the rate $k^2 (I_k(\beta) / \beta - T)$ on the circle, for
# unnormalised attention, with the modified Bessel function $I_k$. The first wave is the last to decay: the uniform
# density is unstable below $T_c = I_1(\beta) / \beta$. The rates are the derivative of the field, which automatic
# differentiation takes.

# %%
critical = iv(1, BETA) / BETA
field = mean_field(0.3)
uniform = field.from_density(lambda x: jnp.ones(len(x)))
derivative = jax.jacfwd(lambda c: field(0.0, c))(uniform)
rates = np.array([derivative[k, 0, k, 0] for k in range(1, 6)])
expected = np.array([k**2 * (iv(k, BETA) / BETA - 0.3) for k in range(1, 6)])
print("rates:", rates.round(6))
print(f"largest difference from the formula: {np.abs(rates - expected).max():.1e}; T_c = {critical:.6f}")

# %% [markdown]
# ## Below and above it
#
# The order parameter $r$ is the length of the mean of the tokens: 0 of the uniform density, 1 of a single cluster. Each
# run begins with a wave of a tenth. The density at the end is the Gibbs density of its own potential, which can be
# iterated:
#
# $$\mu \propto \exp\left(\frac{1}{\beta T} \int e^{\beta\langle \cdot, y\rangle}\, d\mu(y)\right).$$

# %%
start = field.from_density(lambda x: 1 + 0.1 * x[:, 0])
temperatures = jnp.linspace(0.5, 1.1, 13 if not SMALL else 5) * critical
long = jnp.array([0.0, 600.0])
final = jax.vmap(lambda one: cjx.simulate(mean_field(one), start, long, solver=cjx.Rodas5P()).x1)(temperatures)
order = jax.vmap(field.order_parameter)(final)


def self_consistent(temperature):
    """The order parameter of the density that is the Gibbs density of its own potential."""
    angles = np.arange(256) * 2 * np.pi / 256
    kernel = np.exp(BETA * np.cos(angles[:, None] - angles)) / BETA
    density = np.exp(np.cos(angles))
    for _ in range(20_000):
        density = density / density.mean()
        with_potential = np.exp(kernel @ density / 256 / temperature)
        density = with_potential / with_potential.mean()
    return abs(np.mean(np.exp(1j * angles) * density))


below = [i for i in range(len(temperatures)) if temperatures[i] < 0.96 * critical]
exact = np.array([self_consistent(float(temperatures[i])) for i in below])
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
left.plot(temperatures / critical, order, "o", color=plot.OKABE_ITO[0], label="run of the density")
left.plot(temperatures[jnp.array(below)] / critical, exact, "-", color=plot.OKABE_ITO[1], label="self-consistent")
left.set(xlabel=r"temperature $T / T_c$", ylabel="order parameter r", ylim=(-0.03, 1.03))
left.legend(frameon=False)
angles = jnp.linspace(-jnp.pi, jnp.pi, 200)
circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
shown = [int(k) for k in np.linspace(0, len(temperatures) - 1, 4)]
for colour, k in zip(plot.OKABE_ITO, shown, strict=False):
    right.plot(angles, field.density(final[k], circle), color=colour, label=f"{temperatures[k] / critical:.2f}")
right.set(xlabel="angle", ylabel="density at the end")
right.set_xticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
right.legend(frameon=False, title=r"$T / T_c$")
plt.show()
print(f"largest difference of r: {np.abs(order[jnp.array(below)] - exact).max():.1e}")

# %% [markdown]
# ## A free energy falls
#
# Unnormalised attention with V = B = I follows the gradient of the free energy, the temperature times minus the entropy
# less the interaction energy. It falls at the rate `field.dissipation`, at each moment of a run.

# %%
ts = jnp.linspace(0.0, 40.0, 81)
traj = cjx.simulate(field, start, ts, solver=cjx.Rodas5P())
free = jax.vmap(field.free_energy)(traj.xs)
falls = jax.vmap(lambda c: jax.jvp(field.free_energy, (c,), (field(0.0, c),))[1])(traj.xs)
lost = jax.vmap(field.dissipation)(traj.xs)
print(f"free energy from {free[0]:.4f} to {free[-1]:.4f}; rate + dissipation: {jnp.abs(falls + lost).max():.1e}")

# %% [markdown]
# ## n tokens
#
# Without noise the same density is followed by n tokens, which are drawn from it at random. At $t = 2$ their mean
# differs from the mean of the density by chance, as $n^{-1/2}$.

# %%
without = mean_field(0.0, 64)
c0 = without.from_density(lambda x: 1 + 0.5 * x[:, 0])
ends = jnp.array([0.0, 2.0])
wanted = without.mean_token(cjx.simulate(without, c0, ends).x1)
particles = cjx.AttentionField(cjx.UnnormalisedAttention(BETA))
counts = [64, 256, 1024] if not SMALL else [64, 256]
draws = 24 if not SMALL else 4


def deviation(n):
    def one(key):
        x = cjx.simulate(particles, without.sample(c0, key, n), ends).x1
        return jnp.linalg.norm(x.mean(axis=0) - wanted)

    distances = jnp.stack([jax.jit(one)(key) for key in jax.random.split(jax.random.key(n), draws)])
    return float(jnp.sqrt(jnp.mean(distances**2)))


deviations = np.array([deviation(n) for n in counts])
slope = np.polyfit(np.log(counts), np.log(deviations), 1)[0]
fig, ax = plt.subplots(figsize=(4.2, 2.9), layout="constrained")
ax.loglog(counts, deviations, "o", color=plot.OKABE_ITO[0], label=f"{draws} draws each")
ax.loglog(counts, deviations[0] * np.sqrt(counts[0] / np.array(counts)), "--", color="0.4", label=r"$n^{-1/2}$")
ax.set(xlabel="tokens n", ylabel="difference of the mean")
ax.legend(frameon=False)
plt.show()
print(f"slope {slope:.2f}")

# %% [markdown]
# ## The claims, asserted

# %%
assert np.abs(rates - expected).max() < 1e-10, "a wave of degree k grows at the rate k^2 (I_k / beta - T)"
assert np.abs(order[jnp.array(below)] - exact).max() < 1e-6, "below T_c the run ends in the self-consistent density"
assert jnp.all(order[temperatures > 1.04 * critical] < 1e-6), "above T_c the density becomes uniform"
assert jnp.all(jnp.diff(free) < 0) and jnp.abs(falls + lost).max() < 1e-10, "the free energy falls by the dissipation"
assert abs(slope + 0.5) < (0.3 if SMALL else 0.12), "n tokens differ from infinitely many by n^-1/2"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - The sphere: `d=3`, where $T_c = 1/e$ at $\beta = 1$. Higher dimensions need particles: `simulate(..., noise=T)`.
# - Above $\beta = 2.447$ on the circle the order parameter jumps: both densities are stable between two temperatures.
# - Softmax attention follows no gradient of this free energy; the equation is the same.
# - Without noise the density steepens until no degree resolves it. The run ends before that, and says when.
#
# ## Exercises
#
# **1. Without noise.** Run `mean_field(0.0)` from `start` to $t = 40$ with `throw=False`. When does it end, and when
# with twice as many degrees?
#
# <details><summary>Answer</summary>
#
# Tokens gather at a rate of order one, and a density of width w needs about 1 / w degrees: each doubling of the degree
# is worth the same time, about log 2 over the rate at which the cluster contracts.
#
# ```python
# ends = []
# for degree in (24, 48):
#     one = mean_field(0.0, degree)
#     begin = one.from_density(lambda x: 1 + 0.1 * x[:, 0])
#     ends.append(float(cjx.simulate(one, begin, jnp.array([0.0, 40.0]), throw=False).t1))
#     print(f"degree {degree}: the run ends at t = {ends[-1]:.2f}")
# assert ends[0] < ends[1] < 2 * ends[0]
# ```
#
# </details>
#
# **2. Both are stable.** At $\beta = 4$ and $T = 1.03\, T_c$, run a nearly uniform density and one that is gathered.
#
# <details><summary>Answer</summary>
#
# Above $\beta_* = 2.447$ the transition is of first order: up to a temperature above $T_c$, the fold, the gathered
# density stays, while the uniform one is stable too.
#
# ```python
# strong = cjx.UnnormalisedAttention(4.0)
# warm = cjx.MeanField(strong, d=2, degree=48, temperature=1.03 * iv(1, 4.0) / 4.0)
# starts = [warm.from_density(lambda x, a=a: jnp.exp(a * x[:, 0])) for a in (0.1, 4.0)]
# ran = [cjx.simulate(warm, c, jnp.array([0.0, 200.0]), solver=cjx.Rodas5P()).x1 for c in starts]
# nearly_uniform, gathered = (float(warm.order_parameter(c)) for c in ran)
# print(f"nearly uniform: r = {nearly_uniform:.3f}; gathered: r = {gathered:.3f}")
# assert nearly_uniform < 0.01 and gathered > 0.5
# ```
#
# </details>
