"""Canonical ends: mergers, limit shapes, densities, phase diagrams, designs, the hardmax dynamics, a sweep."""

import diffrax as dfx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import clusterjax as cjx
from clusterjax import design, hardmax, phase, sweep

from .. import clouds
from ..helpers import normal, sphere_tokens
from .register import golden


CAUSAL = cjx.CausalMask()


def field(beta, value=None, *, kind=cjx.SoftmaxAttention, masses=None, **options):
    return cjx.AttentionField(kind(beta, **options), value, masses=masses)


def circle(*angles):
    return jnp.stack([jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))], axis=1)


# --- mergers


# A step size depends on the last steps, and a merger time after a wait multiplies each rounding error.
COARSE = 1e-6
# Bounds follow the estimated errors of the steps, which change with the rounding errors of a processor. Bounds are the
# only arrays of these runs in single precision.
BOUNDS = 0.05


def mergers(flow, x0, t_end=1e300, tolerance=0.1):
    """Merger times and their bounds as logarithms, since they span a hundred orders of magnitude."""
    tree = cjx.coarsen(flow, x0, t_end, tolerance=tolerance)
    middle = float(np.sqrt(tree.times[0] * tree.times[-1]))
    return {
        "log times": np.log(tree.times), "pairs": np.asarray(tree.pairs), "points": tree.points,
        "log bound": np.log10(tree.bound).astype(np.float32), "middle": tree.at(middle),
        "clusters": tree.clusters(middle),
    }  # fmt: skip


@golden(float64=COARSE, float32=BOUNDS)
def mergers_of_full_attention():
    return mergers(field(40.0), sphere_tokens(0, 10, 3))


@golden(float64=COARSE, float32=BOUNDS)
def mergers_of_causal_attention():
    return mergers(field(9.0, mask=CAUSAL), sphere_tokens(1, 8, 3))


@golden(float64=COARSE)
def mergers_of_causal_attention_with_a_form():
    """Clusters contract onto a curve, so that the steps are implicit."""
    form = normal(3, 3, 3)
    run = mergers(field(4.0, mask=CAUSAL, query_key=form.T @ form), sphere_tokens(2, 4, 3))
    # A bound is infinite here if tokens of a cluster part at an end of the longest step, as they do on some processors.
    return {name: array for name, array in run.items() if name != "log bound"}


@golden(float64=COARSE)
def mergers_of_unnormalised_attention_with_masses_and_repeats():
    x0 = jnp.asarray(clouds.cloud("repeats", 12, 3, seed=2, sphere=True))
    flow = field(6.0, kind=cjx.UnnormalisedAttention, offset=6.0, masses=1.0 + jnp.arange(12.0) % 3)
    tree = cjx.coarsen(flow, x0, 1e300, tolerance=0.1)
    late = tree.times > 0
    return {"log times": np.log(tree.times[late]), "pairs": np.asarray(tree.pairs), "early": np.sum(~late)}


# --- limit shapes


KINDS = ("polytope", "hyperplanes", "polytope x subspace", "Boolean", "one point", "opposite points", "several points",
         "circle", "subspace", "metastable", "none")  # fmt: skip
CROSS = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0], [0.0, 0.0]])
NORTH = np.eye(3)[2:]
AROUND = np.stack([np.cos(np.arange(7.0)), np.sin(np.arange(7.0)), np.zeros(7)], axis=1)


def rescaled(value, form=None):
    return cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=form), value)


SHAPES = {
    "polytope": (CROSS, rescaled(None)),
    "polytope with a form": (clouds.cloud("ring", 8, 2, seed=1), rescaled(None, np.array([[1.0, 0.3], [0.3, 0.6]]))),
    "hyperplanes": (np.array([[2.0, 7.0], [2.0, -1.0], [0.0, 3.0], [-1.0, 9.0]]), rescaled(np.diag([1.0, 0.5]))),
    "mixed": (np.c_[CROSS, np.arange(6.0)], rescaled(np.diag([1.0, 1.0, 0.3]))),
    "Boolean": (np.array([[-1.0], [2.0], [2.0], [-1.0]]), rescaled(np.eye(1))),
    "one point": (np.repeat(NORTH, 6, axis=0), field(9.0)),
    "one point, causal": (np.repeat(NORTH, 6, axis=0), field(9.0, mask=CAUSAL)),
    "opposite points": (np.concatenate([NORTH, NORTH, -NORTH]), field(9.0)),
    "several points": (np.repeat(np.eye(3), 3, axis=0), field(50.0, np.diag([1.0, 1.0, 1.0 + 1e-9]))),
    "circle": (AROUND, field(1.0, -np.eye(3))),
    "subspace": (np.c_[sphere_tokens(3, 9, 3), np.zeros((9, 2))], field(1.0, -np.eye(5))),
    "metastable": (np.repeat(np.eye(3), 3, axis=0), field(50.0)),
    "none": (sphere_tokens(4, 9, 3), field(9.0, mask=CAUSAL)),
}


def parts_of(shape):
    return {
        "kinds": [KINDS.index(shape.kind), KINDS.index(shape.seen)],
        "certified, fits, applies": np.array([shape.certified, shape.fits, shape.applies]),
        "residuals": shape.residuals,
        "clauses": [clause.residual for clause in shape.clauses],
        "held": np.array([hypothesis.held for hypothesis in shape.hypotheses], bool),
        "labels": shape.labels,
        "log until": np.log(shape.until),
    }


@golden(float64=COARSE)  # `coarsen` follows metastable states
def limit_shapes_of_tokens():
    found = {}
    for name, (x, flow) in SHAPES.items():
        found |= {f"{name}: {part}": value for part, value in parts_of(cjx.limit_shape(jnp.asarray(x), flow)).items()}
    return found


# --- densities


def densities(mean, c0, ts):
    traj = cjx.simulate(mean, c0, ts)
    end = traj.xs[-1]
    points = sphere_tokens(5, 4, mean.d)
    return {
        "start": c0, "end": end, "density": mean.density(end, points), "mean token": mean.mean_token(end),
        "entropy": mean.entropy(end), "lowest": mean.lowest(end), "tail": mean.tail(end),
        "order": mean.order_parameter(end), "smoothed": mean.smoothed(end, 0.1),
    }  # fmt: skip


@golden(float64=1e-7)  # two processors differ by 6e-8 in the tail of the coefficients
def density_on_the_circle():
    mean = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=16, temperature=0.3)
    found = densities(
        mean, mean.from_density(lambda x: 1 + 0.4 * x[:, 0] + 0.2 * x[:, 1] ** 2), jnp.asarray([0.0, 4.0])
    )
    energies = {name: getattr(mean, name)(found["end"]) for name in ("energy", "free_energy", "dissipation")}
    return found | energies | {"sample": mean.sample(found["end"], jr.key(0), 5)}


@golden()
def density_on_the_sphere():
    """Softmax attention with a V that is no multiple of the identity, from a cloud of tokens that is smoothed."""
    mean = cjx.MeanField(cjx.SoftmaxAttention(2.0), 0.3 * normal(6, 3, 3), d=3, degree=10, temperature=0.5)
    c0 = mean.smoothed(mean.to_coefficients(sphere_tokens(7, 12, 3)), 0.1)
    found = densities(mean, c0, jnp.asarray([0.0, 0.5]))
    return {name: found[name] for name in ("start", "end", "density", "mean token", "entropy", "order")}


@golden(float64=1e-7)  # Newton's method ends at a tolerance of its own
def stationary_densities():
    branch = phase.branch(cjx.UnnormalisedAttention(4.0), d=2, order_parameters=np.linspace(0.05, 0.9, 12))
    softmax = phase.branch(cjx.SoftmaxAttention(2.0), d=3, order_parameters=np.linspace(0.1, 0.8, 5))
    mean = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=16, temperature=0.3)
    rest = phase.stationary(mean, mean.from_density(lambda x: jnp.exp(3 * x[:, 0])))
    return {
        "temperatures": branch.temperatures, "growth rates": branch.growth_rates, "stable": branch.stable,
        "free energies": branch.free_energies, "fold": branch.fold, "coexistence": branch.coexistence,
        "critical": branch.critical_temperature, "softmax temperatures": softmax.temperatures,
        "softmax growth rates": softmax.growth_rates, "coefficients": rest.coefficients,
        "rate of rest": rest.growth_rate, "rotations": rest.rotations,
    }  # fmt: skip


# --- phase diagrams and sweeps


@golden()
def phase_diagram():
    statistics = (phase.ClosePairs(0.9), phase.GramRank(), phase.ClusterRank(0.95))
    options = {"n": 5, "d": 3, "samples": 6, "statistics": statistics, "progress": False}
    laws = {"query_key": phase.Square(), "value": phase.Wigner(phase.PerBeta()), "mask": CAUSAL}
    drawn = phase.phase_diagram(np.array([1.0]), np.array([0.0, 1.0]), **options, **laws)
    return {name: np.asarray(drawn[name]) for name in drawn.data_vars if drawn[name].dtype.kind in "fi"}


@golden()
def sweep_of_a_grid():
    def energy(beta, d, key):
        x = cjx.Sphere().sample(key, 6, d, jnp.float64)
        return {"energy": cjx.interaction_energy(x, beta), "clusters": cjx.num_clusters(x, 0.8)}

    axes = {"beta": [1.0, 2.0, 4.0], "d": sweep.Axis([2, 3], static=True)}
    found = sweep.run(energy, axes, batch_size=2, progress=False, seed=4)
    return {name: np.asarray(found[name]) for name in ("energy", "clusters", "status", "beta", "d")}


# --- designs


HEUN = {"solver": dfx.Heun(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.25, "max_steps": 64}


@golden(float64=1e-6)  # a fit ends where its steps change parameters by less than a tolerance
def design_recovers_parameters():
    ts, x0 = np.array([0.0, 0.5, 1.0, 1.5]), sphere_tokens(3, 5, 2)
    truth = cjx.AttentionField(cjx.SoftmaxAttention(1.5, query_key=jnp.eye(2) + normal(4, 2, 2) / 2), jnp.eye(2))
    guess = cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=jnp.eye(2)), jnp.eye(2))
    observed = cjx.simulate(truth, x0, jnp.asarray(ts), **HEUN).xs
    pick = lambda f: (f.attention.beta, f.attention.query_key)
    found = design.recover(guess, observed, ts, which=pick, noise=0.1, **HEUN)
    form = found.estimate[0] * found.estimate[1]  # beta and the scale of the form cannot be told apart
    return {"form": form, "null": found.null.T @ found.null, "fisher": np.diag(found.fisher), "ok": found.converged}


@golden(float64=1e-6)  # the time of the event is found by a search that ends at a tolerance
def design_sensitivity():
    slope = design.sensitivity(field(1.0), circle(0.0, 0.7, 1.6), 0.1, until=30.0)
    return {"time": slope.time, "by start": slope.by_start, "by beta": slope.by_parameters[0]}


# --- hardmax


FORM = jnp.asarray([[1.0, 0.3, 0.1], [0.3, 0.6, 0.0], [0.1, 0.0, 0.4]])


@golden()
def hardmax_layers():
    """Dyadic tokens, whose sums are exact, under each mask, and the softmax layer beside them."""
    z0 = jnp.asarray(clouds.cloud("heaps", 9, 3, seed=3))
    masses = jnp.asarray(clouds.masses("some zero", 9, seed=1))
    masks = {"full": cjx.FullMask(), "causal": CAUSAL, "window": cjx.WindowMask(3)}
    layers = {name: hardmax.HardmaxLayer(1.0, FORM, mask=mask, masses=masses) for name, mask in masks.items()}
    found = {name: cjx.iterate(layer, z0, 6, save_every=3).xs[1:] for name, layer in layers.items()}
    return found | {"twin": cjx.iterate(hardmax.SoftmaxTwin(hardmax.HardmaxLayer(1.0, FORM), 8.0), z0, 3).xs[-1]}


@golden()
def hardmax_ends():
    z0, layer = normal(10, 12, 3), hardmax.HardmaxLayer(1.0, FORM)
    led, end, proof = hardmax.leaders(z0, layer, 20), hardmax.limit_set(z0, layer), hardmax.certificate(z0, layer)
    return {
        "first": led.first, "led": led.mask, "points": end.points, "vertices": end.is_vertex, "goes to": end.goes_to,
        "outside": end.outside, "dimension": end.dimension, "settled": end.settled, "held": proof.held,
        "clauses held": np.array([clause.held for clause in proof.clauses]),
        "margins": [clause.margin for clause in proof.clauses],
    }  # fmt: skip


@golden(float64=1e-6)  # the search for A takes gradient steps on a minimum that sharpens
def hardmax_choices_and_exact_runs():
    verdicts = ("held", "failed", "open")
    chosen = hardmax.choose_leaders(normal(11, 8, 2), [0, 3], seed=1, starts=2)
    z0 = jnp.asarray([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    exact = hardmax.examine(z0, hardmax.HardmaxLayer(1.0, jnp.asarray([[1.0, 0.0], [0.0, 0.0]])))
    return {
        "margins": [chosen.margin, chosen.bound], "succeeded": chosen.succeeded, "leaders": chosen.leaders.mask,
        "impossible": np.array(chosen.impossible, int), "verdicts": [verdicts.index(c.verdict) for c in exact.clauses],
        "limits": exact.limits, "first": exact.first, "violates": len(exact.violates),
    }  # fmt: skip
