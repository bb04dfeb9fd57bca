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
# # With noise, infinitely many tokens gather below a critical temperature, and n tokens differ from them by $n^{-1/2}$
#
# The theorems about attention are about measures: the velocity depends on the tokens only through their distribution
# $\mu$. As the number of tokens tends to infinity, $\mu$ has a density that evolves by
#
# $$\partial_t \mu + \nabla\cdot(\mu\, v[\mu]) = T\,\Delta\mu,$$
#
# where the temperature $T$ is that of an additional Brownian motion of each token. `MeanField` is this equation for the
# coefficients of the density in harmonics of the circle or the sphere. It is a field like any other; its state is a
# matrix of coefficients.
#
# **This notebook shows** when the uniform density is unstable, the densities at the end of runs below and above the
# critical temperature, a free energy that decreases, and the difference between n tokens and infinitely many. It
# asserts the critical temperature, the densities and the order of the difference.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot]' jupyterlab`. The notebook
# needs no other file, and runs in less than two minutes on two cores.

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
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
BETA = 1.0
attention = cjx.UnnormalisedAttention(BETA)


def mean_field(temperature, degree=24):
    return cjx.MeanField(attention, d=2, degree=degree, temperature=temperature)


# %% [markdown]
# ## When the uniform density is unstable
#
# A small wave of degree $k$ on the uniform density of the circle grows at the rate $k^2 (I_k(\beta) / \beta - T)$ in
# unnormalised attention, where $I_k$ is the modified Bessel function. As $T$ decreases, the first degree becomes
# unstable first, so the uniform density is unstable for $T$ below $T_c = I_1(\beta) / \beta$. The next cell computes
# the rates from the derivative of the field, by automatic differentiation.

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
# ## Below and above the critical temperature
#
# The order parameter $r$ is the norm of the mean token: 0 for the uniform density, 1 for a single cluster. Each run
# starts from the uniform density plus a small wave of degree one. The density at the end must be the Gibbs density of
# its own potential, which a fixed-point iteration computes:
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
print(f"largest difference of r from the fixed-point iteration: {np.abs(order[jnp.array(below)] - exact).max():.1e}")

# %% [markdown]
# ## A free energy decreases
#
# Unnormalised attention with V = B = I follows the gradient of a free energy: the negative entropy times the
# temperature, minus the interaction energy. At each time the free energy decreases at the rate `field.dissipation`.

# %%
ts = jnp.linspace(0.0, 40.0, 81)
traj = cjx.simulate(field, start, ts, solver=cjx.Rodas5P())
free = jax.vmap(field.free_energy)(traj.xs)
falls = jax.vmap(lambda c: jax.jvp(field.free_energy, (c,), (field(0.0, c),))[1])(traj.xs)
lost = jax.vmap(field.dissipation)(traj.xs)
print(f"free energy from {free[0]:.4f} to {free[-1]:.4f}")
print(f"largest sum of its rate and the dissipation: {jnp.abs(falls + lost).max():.1e}")

# %% [markdown]
# ## n tokens
#
# Without noise, n tokens that are drawn at random from the density follow the same equation. At $t = 2$ the difference
# of their mean from the mean of the density is random, of the order of $n^{-1/2}$.

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
print(f"slope in logarithmic axes: {slope:.2f}")

# %% [markdown]
# ## The claims, asserted

# %%
assert np.abs(rates - expected).max() < 1e-10, "a wave of degree k does not grow at the rate k^2 (I_k / beta - T)"
assert np.abs(order[jnp.array(below)] - exact).max() < 1e-6, "below T_c the density at the end is not self-consistent"
assert jnp.all(order[temperatures > 1.04 * critical] < 1e-6), "above T_c the density does not become uniform"
assert jnp.all(jnp.diff(free) < 0), "the free energy increases"
assert jnp.abs(falls + lost).max() < 1e-10, "the free energy does not decrease at the rate of dissipation"
assert abs(slope + 0.5) < (0.3 if SMALL else 0.12), "the difference is not of the order n^-1/2"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - On the sphere, `d=3`, the critical temperature is $T_c = 1/e$ at $\beta = 1$. Higher dimensions need particles:
#   `simulate(..., noise=T)`.
# - Softmax attention does not follow the gradient of this free energy; `MeanField` accepts it as well.
# - Without noise the density becomes so narrow in the end that no degree resolves it. The run then ends with an error
#   that states the time.

# %% [markdown]
# ## Three questions
#
# **1. At the critical temperature.** Close to $T_c$ the runs need more time. How does the time in which a small wave
# grows by a factor of ten depend on $T$? Predict it from the rates above, and compare $T = 0.9\, T_c$ with $T = 0.99\,
# T_c$.
#
# <details><summary>Answer</summary>
#
# The time is $\log 10 / (T_c - T)$, because the rate of the first degree is $T_c - T$. It is ten times longer for
# $0.99\, T_c$, and infinite at $T_c$: the system slows down at the critical point.
#
# ```python
# def growth(share):
#     one = mean_field(share * critical)
#     begin = one.from_density(lambda x: 1 + 1e-4 * x[:, 0])
#     time = np.log(10) / (critical * (1 - share))
#     end = cjx.simulate(one, begin, jnp.array([0.0, time]), solver=cjx.Rodas5P()).x1
#     return time, float(one.order_parameter(end) / one.order_parameter(begin))
#
#
# for share in (0.9, 0.99):
#     time, factor = growth(share)
#     print(f"T = {share} T_c: a small wave grows by the factor {factor:.3f} in t = {time:.1f}")
#     assert abs(factor / 10 - 1) < 1e-2
# ```
#
# </details>
#
# **2. Without noise.** Run `mean_field(0.0)` from a small wave to $t = 40$ with `throw=False`. At which time does the
# run end early? Does it end twice as late with twice as many degrees?
#
# <details><summary>Answer</summary>
#
# It does not: each doubling of the degrees adds about the same time. A cluster contracts at a rate of order one, so its
# width decays exponentially, and a density of width w needs about 1 / w degrees.
#
# ```python
# ends = []
# for degree in (12, 24, 48):
#     one = mean_field(0.0, degree)
#     begin = one.from_density(lambda x: 1 + 0.1 * x[:, 0])
#     ends.append(float(cjx.simulate(one, begin, jnp.array([0.0, 40.0]), throw=False).t1))
#     print(f"degree {degree}: the run ends at t = {ends[-1]:.2f}")
# added = np.diff(ends)
# assert np.all(added > 0) and 0.5 < added[1] / added[0] < 2 and ends[2] < 1.5 * ends[1]
# ```
#
# </details>
#
# **3. Two stable densities.** At $\beta = 4$ and $T = 1.03\, T_c$ the uniform density is stable. Does a density that is
# concentrated at the start become uniform?
#
# <details><summary>Answer</summary>
#
# It does not. For $\beta$ above 2.447 the transition is of first order: in an interval of temperatures above $T_c$ both
# the uniform and a concentrated density are stable, and the start decides which one the run approaches.
#
# ```python
# strong = cjx.UnnormalisedAttention(4.0)
# warm = cjx.MeanField(strong, d=2, degree=48, temperature=1.03 * iv(1, 4.0) / 4.0)
# starts = [warm.from_density(lambda x, a=a: jnp.exp(a * x[:, 0])) for a in (0.1, 4.0)]
# ran = [cjx.simulate(warm, c, jnp.array([0.0, 200.0]), solver=cjx.Rodas5P()).x1 for c in starts]
# nearly_uniform, concentrated = (float(warm.order_parameter(c)) for c in ran)
# print(f"from a nearly uniform density: r = {nearly_uniform:.3f}; from a concentrated one: r = {concentrated:.3f}")
# assert nearly_uniform < 0.01 and concentrated > 0.5
# ```
#
# </details>
