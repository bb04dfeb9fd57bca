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
# # A run can be differentiated, so its parameters can be recovered from tokens, or chosen to lead tokens to targets
#
# A run of `simulate` is a differentiable function of the start and of every parameter of the field. Three functions of
# `clusterjax.design` use the derivative: `recover` finds the parameters of an observed run, `steer` finds parameters
# that lead tokens to given points, and `sensitivity` computes how the time of clustering depends on start and
# parameters.
#
# **This notebook shows** each of the three on an example, and asserts their results: the errors against the Cramer-Rao
# bound, the distance to the targets, and the derivative of an exact formula.
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
from clusterjax import design, plot


jax.config.update("jax_enable_x64", True)
SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes

# %% [markdown]
# ## Which parameters belong to an observed run?
#
# Ten tokens on the circle are observed at six times; the inverse temperature $\beta$ and the matrix V are unknown.
# Without noise `recover` finds them up to the tolerance of the run. If the observed coordinates have independent normal
# errors, no unbiased estimate has a smaller standard deviation than the Cramer-Rao bound. `recover` computes this bound
# from the derivatives of the run: `found.bounds`.

# %%
V = jnp.array([[1.0, 0.4], [-0.3, 0.6]])
BETA = 2.0
x0 = cjx.Sphere().sample(jax.random.key(0), n=10, d=2)
ts = jnp.linspace(0.0, 2.0, 6)
truth = cjx.AttentionField(cjx.SoftmaxAttention(BETA), V)
tight = dfx.PIDController(1e-10, 1e-12)
clean = cjx.simulate(truth, x0, ts, stepsize_controller=tight).xs
guess = cjx.AttentionField(cjx.SoftmaxAttention(1.0), jnp.eye(2))


def pick(field):
    return field.attention.beta, field.value


def recovered(observed, noise=None):
    return design.recover(guess, observed, ts, which=pick, x0=x0, noise=noise)


exact = recovered(clean)
print(exact.summary())
off_without_noise = max(abs(exact.estimate[0] - BETA), np.abs(exact.estimate[1] - V).max())
print(f"largest error without noise: {off_without_noise:.1e}")

# %% [markdown]
# The next cell repeats the estimate for many random errors. The error of an estimate over its bound should have a
# standard normal distribution.

# %%
SIGMA, DRAWS = 0.02, 24 if not SMALL else 6
scaled = []
for key in jax.random.split(jax.random.key(1), DRAWS):
    found = recovered(clean + SIGMA * jax.random.normal(key, clean.shape), SIGMA)
    errors = np.concatenate([np.ravel(found.estimate[0] - BETA), np.ravel(found.estimate[1] - V)])
    scaled.append(errors / np.concatenate([np.ravel(bound) for bound in found.bounds]))
scaled = np.array(scaled)
grid = np.linspace(-3.5, 3.5, 200)
fig, ax = plt.subplots(figsize=(4.2, 2.9), layout="constrained")
ax.hist(scaled.ravel(), bins=21, range=(-3.5, 3.5), density=True, color=plot.OKABE_ITO[0], alpha=0.6)
ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=plot.OKABE_ITO[1], label="standard normal")
ax.set(xlabel="error over its Cramer-Rao bound", ylabel="density")
ax.legend(frameon=False)
plt.show()
print(f"{scaled.size} errors over their bounds: root mean square {np.sqrt(np.mean(scaled**2)):.2f}")

# %% [markdown]
# `recover` also finds which parameters the tokens do not determine. The scores are $\beta \langle x_i, B x_j \rangle$,
# so the tokens depend only on the product of $\beta$ and B: the Fisher information has a null direction, and the result
# names it.

# %%
both = cjx.AttentionField(cjx.SoftmaxAttention(1.5, query_key=jnp.eye(2)))
doubtful = design.recover(
    both, clean, ts, which=lambda f: (f.attention.beta, f.attention.query_key), x0=x0, noise=SIGMA, most=40
)
print("not determined:", doubtful.unidentified)
product_bound = doubtful.bound_of(lambda beta, form: beta * form)
print("bound of beta:", doubtful.bounds[0], "; largest bound of an entry of beta B:", product_bound.max().round(3))

# %% [markdown]
# ## Which parameters lead tokens to given points?
#
# Six tokens on the sphere shall form three clusters at the points $e_1$, $e_2$ and $e_3$ at $t = 5$; the targets are
# assigned without regard to the start. V and B are constant in each of five intervals of time, which makes 90
# parameters.

# %%
start = cjx.Sphere().sample(jax.random.key(3), n=6, d=3)
targets, labels = jnp.eye(3), jnp.array([0, 1, 2, 0, 1, 2])
free = cjx.AttentionField(cjx.SoftmaxAttention(2.0, query_key=jnp.eye(3)), jnp.eye(3))
steered = design.steer(
    free, start, targets, labels=labels, key=jax.random.key(4), pieces=5,
    which=lambda f: (f.attention.query_key, f.value),
)  # fmt: skip
print(steered.summary())
path = cjx.simulate(steered.field, start, jnp.linspace(0.0, 5.0, 201))
missed = np.linalg.norm(path.x1 - targets[labels], axis=1)
arrows = {f"$e_{k + 1}$": targets[k] for k in range(3)}
view = (35, 45)
fig, ax = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
plot.sphere(path.x1, ax, labels=labels, arrows=arrows, view=view)
for k in range(6):
    ax.plot(*plot.project(path.xs[:, k], view)[0].T, color=plot.OKABE_ITO[int(labels[k])], lw=0.8)
plt.show()
print(f"largest distance to a target in a run with the default tolerances: {missed.max():.1e}")

# %% [markdown]
# ## On what does the time of clustering depend?
#
# Two tokens at an angle $\theta$ approach each other by $\dot\theta = -2 w(\theta) \sin\theta$ with the weight $w = 1 /
# (1 + e^{\beta(1 - \cos\theta)})$. The derivative of the time of clustering with respect to the angle at the start is
# therefore $1 / (2 w(\theta) \sin\theta)$. `sensitivity` computes it from the run, by the implicit function theorem at
# the time of clustering. The derivative tends to infinity near $\theta = \pi$, where two opposite tokens do not move.

# %%
RADIUS = 0.1
field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))


def two(angle):
    return jnp.array([[1.0, 0.0], [jnp.cos(angle), jnp.sin(angle)]])


def speed(angle):
    return 2 * np.sin(angle) / (1 + np.exp(1 - np.cos(angle)))


angles = np.array([0.5, 1.5, 2.5, 3.0, 3.1, 3.14])
measured, wanted, times = [], [], []
for angle in angles:
    found = design.sensitivity(field, two(angle), RADIUS, until=100.0)
    measured.append(float(found.by_start[1] @ np.array([-np.sin(angle), np.cos(angle)])))
    wanted.append(1 / speed(angle))
    # The distance of both tokens to their mean is sin(angle / 2).
    times.append((found.time, quad(lambda a: 1 / speed(a), 2 * np.arcsin(RADIUS), angle)[0]))
measured, wanted, times = map(np.array, (measured, wanted, times))
fig, ax = plt.subplots(figsize=(4.2, 2.9), layout="constrained")
fine = np.linspace(0.3, 3.141, 400)
ax.semilogy(fine, 1 / speed(fine), color=plot.OKABE_ITO[1], label="formula")
ax.semilogy(angles, measured, "o", color=plot.OKABE_ITO[0], label="design.sensitivity")
ax.set(xlabel=r"angle at the start $\theta$ (radians)", ylabel="derivative of the time")
ax.legend(frameon=False)
plt.show()
opposite = design.sensitivity(field, two(np.pi), RADIUS, until=100.0)
print(opposite.summary())

# %% [markdown]
# ## The claims, asserted

# %%
assert off_without_noise < 1e-7, "without noise V and beta are not recovered up to the tolerance of the run"
assert abs(np.sqrt(np.mean(scaled**2)) - 1) < (0.6 if SMALL else 0.35), "the errors differ from the Cramer-Rao bound"
assert np.isinf(doubtful.bounds[0]) and doubtful.unidentified, "beta and B are determined separately"
assert np.isfinite(product_bound).all(), "beta B is not determined"
assert steered.reached and missed.max() < 1.5e-2, "the tokens do not reach their targets"
assert np.allclose(measured, wanted, rtol=1e-4), "the derivative of the time of clustering differs from the formula"
assert np.allclose(times[:, 0], times[:, 1], rtol=1e-6), "the time of clustering differs from the formula"
assert not opposite.determined, "opposite tokens have a time of clustering"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `recover` finds a minimum near the first guess. With large errors, or with a guess that is far from the true
#   parameters, this can be another minimum.
# - `steer` misses the targets if the intervals are too few; the required number grows with the number of tokens. With a
#   perceptron in addition to attention (`field + PerceptronField(...)`) fewer intervals are needed.
# - `design.hold` chooses $\beta(t)$ or V such that k clusters exist up to a given time, and `design.delay` chooses the
#   change of V that keeps tokens farthest apart (see `clusterjax reproduce design-hold`).

# %% [markdown]
# ## Three questions
#
# **1. A short time of observation.** Observe the tokens only at the times 0 and 0.1. How do the bounds change?
#
# <details><summary>Answer</summary>
#
# The bounds become much larger: in a short time the tokens move little compared with the errors of observation. For
# short times the bounds are inversely proportional to the time.
#
# ```python
# bounds = []
# for time in (0.05, 0.1):
#     short = jnp.array([0.0, time])
#     near = cjx.simulate(truth, x0, short).xs
#     bounds.append(float(design.recover(guess, near, short, which=pick, x0=x0, noise=SIGMA).bounds[0]))
#     print(f"bound of beta from the times 0 and {time}: {bounds[-1]:.2f}")
# late = float(recovered(clean, SIGMA).bounds[0])
# print(f"bound of beta from all times: {late:.3f}")
# assert bounds[1] > 5 * late and abs(bounds[0] / bounds[1] / 2 - 1) < 0.2
# ```
#
# </details>
#
# **2. One cluster.** Let all ten tokens start at the same point. Which of the parameters $\beta$ and V do the observed
# tokens determine?
#
# <details><summary>Answer</summary>
#
# They do not determine $\beta$: the weighted mean of equal tokens is the same for all weights. Of V they determine only
# what moves the cluster, so a multiple of the identity in V remains unknown as well.
#
# ```python
# together = jnp.tile(x0[:1], (10, 1))
# seen = cjx.simulate(truth, together, ts, stepsize_controller=tight).xs
# one_cluster = design.recover(guess, seen, ts, which=pick, x0=together, noise=SIGMA)
# print("not determined:", one_cluster.unidentified)
# print("bound of beta:", one_cluster.bounds[0])
# assert np.isinf(one_cluster.bounds[0]) and np.isinf(one_cluster.bounds[1]).any()
# ```
#
# </details>
#
# **3. One interval.** Steer the six tokens with V and B constant in time: `pieces=1`. These are 18 parameters for the
# 12 coordinates of six points on the sphere. Do the tokens reach their targets?
#
# <details><summary>Answer</summary>
#
# They do not, in the two attempts of the code below. More parameters than coordinates are not sufficient: all tokens
# follow one flow, which does not change with time.
#
# ```python
# one = design.steer(
#     free, start, targets, labels=labels, key=jax.random.key(4), pieces=1, t_end=5.0, attempts=2,
#     which=lambda f: (f.attention.query_key, f.value),
# )
# print(one.summary())
# assert not one.reached and one.missed.max() > steered.missed.max()
# ```
#
# </details>
