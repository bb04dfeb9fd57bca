"""The similarity curve of a trained network, compared with the curve that its heads predict as a particle model.

The model is from Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2. Three
networks without some of the parts (`ablations`), between the full network and the model, show which part shapes the
curve; then the time per layer and beta are fitted (`fit_scales`).

Invariants: all curves begin at the same number, the mean cosine of the embedded tokens; curves are compared text by
text, so that errors are errors of paired differences; every part of a run has its own file in the store.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from ..._base.checks import check_choice, check_flag, check_integer, check_number, refusal
from ..._base.numerics import einsum
from ..._base.summary import levels, short
from ..._dynamics.simulate import simulate
from ..._model.heads import MultiHeadField
from ..._model.mask import FullMask
from ..measures.survey import (
    Average,
    Measure,
    Tally,
    average_of,
    check_surveyed,
    check_texts,
    digest,
    dtype_of,
    encoded,
    fingerprint,
    survey,
)
from ..measures.table import tabled
from ..networks.batch import Encoded
from ..networks.directions import norms_of
from ..networks.load import Model
from ..networks.recorded import Recorded
from ..networks.sizes import MOST
from .ablations import on_sphere, without_feed_forward, without_norms
from .field import mean_cosine, particle_field


# Fit of the two numbers of the particle model, time per layer and beta, to the curves of a network.
#
# Least squares by Levenberg and Marquardt (Marquardt, *An algorithm for least-squares estimation of nonlinear
# parameters*, Journal of SIAM, 1963) in the logarithms of both, which keeps them positive: step = -(H + damping I)^-1
# g, with g the gradient of the mean squared difference and H the Gauss-Newton matrix. The damping is divided by 10
# after a step that lowers the loss and multiplied by 10 otherwise.
#
# Invariants: the best point so far is never lost; a step whose curves overflow counts as infinite loss; with a store,
# an interrupted run replays its steps from the file and continues bit for bit.


_CLOSE = 1e-3  # three significant digits

AS_IT_COMES = np.zeros(2)  # time 1 and beta 1
UNIFORM = np.array([0.0, -np.inf])  # beta 0


class Fit(NamedTuple):
    """The result of `fit_scales`: the best logarithms of time per layer and beta, (2,); the curves at these and at the
    starting point, (texts, levels); the loss of every step; and `converged`, True if the fit converged."""

    log_scales: np.ndarray
    best: np.ndarray
    start: np.ndarray
    losses: np.ndarray
    converged: bool


def fit_scales(
    particles: Any, target: np.ndarray, steps: int, first: float, log: Callable[[str], None],
    store: Path | None = None, asked: dict[str, Any] | None = None, begin: np.ndarray = AS_IT_COMES,
) -> Fit:  # fmt: skip
    """Minimise the mean squared difference of `particles.curves` from `target`, (texts, levels), over the logarithms of
    time per layer and beta. `first` bounds the norm of the first step. `begin` is the starting point: from `UNIFORM`
    beta stays 0, since the derivative with respect to its logarithm is 0."""
    trial = log_scales = begin
    gradient = np.zeros(2)
    curvature, damping, losses, converged = np.zeros((2, 2)), 0.0, [], False
    # The store holds the losses and derivatives of all steps, and the curves of the first step and of each step that
    # was the best so far. An interrupted fit replays its decisions from these without running the particles.
    tally = Tally()
    if store is not None and store.exists():
        # Curves that overflow are stored too: the fit rejects the step again on replay.
        tally.restore(store, asked or {}, most=2**31, finite=False)
        _check_steps(tally, store)
        log(f"resuming the fit after step {tally.texts - 1}")
    known = tally.texts
    start = best = tally.arrays.get("start", np.empty(0))
    for step in range(steps + 1):
        # A stored step: the decisions below are repeated from the recorded numbers, without running the particles.
        if step < known:
            value, curves = float(tally.arrays["values"][step]), None
            trial_gradient, trial_curvature = tally.arrays["slopes"][step], tally.arrays["curvatures"][step]
        else:
            curves, derivatives = particles.curves(trial)
            residuals = curves - target
            value = float(np.mean(residuals**2))
            trial_gradient = 2 * np.mean(residuals[..., None] * derivatives, axis=(0, 1))
            # Gauss-Newton: H omits the second derivatives of the curves, so it is never indefinite.
            trial_curvature = 2 * np.einsum("tlk,tlm->km", derivatives, derivatives) / residuals.size
            start = curves if step == 0 else start
        overflows = not all(np.all(np.isfinite(term)) for term in (value, trial_gradient, trial_curvature))
        if overflows and step == 0:
            raise ValueError(
                "particles must stay finite, but as they come, with time 1 and beta 1, they overflow; pass a larger "
                f"steps_per_layer than {particles.steps_per_layer}, or load the model with dtype=float64."
            )
        better = not overflows and (step == 0 or value < min(losses))
        if better:
            log_scales, gradient, curvature = trial, trial_gradient, trial_curvature
            best = tally.arrays[f"curves {step}"] if curves is None else curves
            # At the start damping = |g| / first bounds the step: |(H + damping I)^-1 g| <= first, since H is positive
            # semidefinite.
            damping = damping / 10 if step else float(np.linalg.norm(gradient)) / first
        else:
            damping = 10 * damping
        losses.append(np.inf if overflows else value)
        # `curves` is None for a step read from the store.
        if store is not None and curves is not None:
            tally.append("values", np.array([value]))
            tally.append("slopes", trial_gradient[None])
            tally.append("curvatures", trial_curvature[None])
            tally.arrays |= {"start": start} | ({f"curves {step}": curves} if better else {})
            tally.texts = step + 1
            tally.save(store, asked or {})
        time, beta = np.exp(trial)
        log(f"step {step} of at most {steps}: loss {value:.4g}, time {time:.4g}, beta {beta:.4g}")
        # The Gauss-Newton step without damping estimates the distance to the minimum if the curves are linear. Where
        # the curves do not depend on beta, H is singular, so `lstsq` finds the step of least norm.
        undamped_step = np.linalg.lstsq(curvature, -gradient)[0]
        converged = bool(np.all((np.abs(undamped_step) < _CLOSE) | (np.abs(gradient) < _CLOSE * min(losses))))
        if converged:
            break
        # The next step starts from the best point and not from the last: a rejected step changes only the damping.
        trial = log_scales + np.linalg.solve(curvature + damping * np.eye(2), -gradient)
    return Fit(log_scales, best, start, np.array(losses if steps else []), converged and steps > 0)


def _check_steps(done: Tally, store: Path) -> None:
    """Raise a ValueError unless the tally has a row for each step and all curves that the steps require."""
    rows = {"values": (), "slopes": (2,), "curvatures": (2, 2)}
    complete = all(name in done.arrays and done.arrays[name].shape == (done.texts, *rows[name]) for name in rows)
    best = np.inf
    for step, value in enumerate(done.arrays["values"] if complete else ()):
        # The rule of `fit_scales`: curves are stored for the first step and for each step that lowered the loss.
        better = np.all(np.isfinite([value, *done.arrays["slopes"][step], *done.arrays["curvatures"][step].ravel()]))
        if (better and value < best) or step == 0:
            complete, best = complete and f"curves {step}" in done.arrays, value
    if not complete or "start" not in done.arrays:
        raise ValueError(f"store must be whole, but {store} lacks steps of the fit; remove it, or choose another file.")


class Particles(NamedTuple):
    """The particle model of all texts, in batches of one shape."""

    field: MultiHeadField
    last_scale: Array | None
    starts: list[tuple[Array, Array]]
    levels: int
    steps_per_layer: int
    texts: int

    @classmethod
    def make(
        cls, model: Model | Recorded, data: Encoded, radius: Any, batch_size: int, steps_per_layer: int
    ) -> "Particles":
        texts = len(data.mask)
        size = min(batch_size, texts)
        batches = []
        for start in range(0, texts, size):
            # Copies of the last text fill the last batch: another shape would trigger compilation.
            rows = np.minimum(np.arange(start, start + size), texts - 1)
            batches.append((embedded_directions(model, data, rows), jnp.asarray(data.mask[rows])))
        field = particle_field(model, radius, n=data.mask.shape[1])
        _, scale, _ = norms_of(model)
        scale = None if scale is None else jnp.asarray(scale)
        return cls(field, scale, batches, model.num_layers + 1, steps_per_layer, texts)

    def curves(self, log_scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The curve of each text, (texts, levels), and its derivatives by both logarithms, (texts, levels, 2)."""
        curves, derivatives = zip(*self._computed(_with_derivatives, log_scales), strict=True)
        return self._joined(curves), self._joined(derivatives)

    def predicted(self, log_scales: np.ndarray) -> np.ndarray:
        """The curve of each text without derivatives, (texts, levels), at a third of the cost."""
        return self._joined(self._computed(_without_derivatives, log_scales))

    def _computed(self, function: Callable[..., Any], log_scales: np.ndarray) -> list[Any]:
        scales = jnp.asarray(log_scales, self.starts[0][0].dtype)
        return [
            function(self.field, scales, self.last_scale, *start, self.levels, self.steps_per_layer)
            for start in self.starts
        ]

    def _joined(self, parts: Sequence[Array]) -> np.ndarray:
        # The copies that fill the last batch are dropped.
        return np.concatenate([np.asarray(part, np.float64) for part in parts])[: self.texts]


def _curves_of(
    field: Any, log_scales: Array, last_scale: Array | None, x0: Array, mask: Array, levels: int, steps_per_layer: int
) -> Array:
    # Logarithms keep both numbers positive for any step of the fit.
    time, beta = jnp.exp(log_scales[0]), jnp.exp(log_scales[1])

    def level_statistic(t: Array, x: Array, word: Array) -> Array:
        """The mean cosine of the tokens; the last norm is applied to them at the last level."""
        if last_scale is None:
            return mean_cosine(x, word)
        # Times are 0, 1, ..., levels - 1; comparing with the midpoint before the last time is safe from rounding.
        return mean_cosine(jnp.where(t > levels - 1.5, x * last_scale[None], x), word)

    def of_text(x0: Float[Array, "n d"], word: Bool[Array, " n"]) -> Float[Array, " levels"]:
        # The masses are None so far, and `tree_at` takes a None for a leaf only with `is_leaf`.
        beta_and_masses = lambda field: (field.beta, field.masses)
        heads = eqx.tree_at(beta_and_masses, field, (beta, word.astype(x0.dtype)), is_leaf=lambda leaf: leaf is None)
        run = simulate(
            # Time is a factor of the field, so that the grid of steps does not depend on it and nothing is recompiled.
            time * heads,
            x0,
            jnp.arange(levels, dtype=x0.dtype),
            word,
            solver=dfx.Bosh3(),
            stepsize_controller=dfx.ConstantStepSize(),
            dt0=1 / steps_per_layer,
            # Two parameters and many outputs: forward mode costs three runs; reverse mode would store all steps.
            adjoint=dfx.ForwardMode(),
            save=level_statistic,
            # diffrax requires a bound: there are (levels - 1) steps_per_layer constant steps, and rounding of times may
            # add some.
            max_steps=levels * steps_per_layer + 8,
        )
        return run.xs

    return jax.vmap(of_text)(x0, mask)


_without_derivatives = eqx.filter_jit(_curves_of)


@eqx.filter_jit
def _with_derivatives(field, log_scales, last_scale, x0, mask, levels, steps_per_layer) -> tuple[Array, Array]:
    def curves_and_copy(log_scales):
        curves = _curves_of(field, log_scales, last_scale, x0, mask, levels, steps_per_layer)
        return curves, curves

    # `has_aux` returns the curves from the run that computes their derivatives.
    derivatives, curves = jax.jacfwd(curves_and_copy, has_aux=True)(log_scales)
    return curves, derivatives


def embedded_directions(model: Model | Recorded, data: Encoded, rows: Any) -> Array:
    """The directions of the embedded tokens of these texts; padding gets the direction of the first word, with mass
    zero."""
    mask = data.mask[rows]
    if isinstance(model, Recorded):
        hidden = jnp.asarray(model.hidden[rows, 0])
    else:
        hidden = _embedded(*nnx.split(model.network), jnp.asarray(data.token_ids[rows], jnp.int32))
    first = jnp.take_along_axis(hidden, jnp.asarray(np.argmax(mask, axis=1))[:, None, None], axis=1)
    # A zero row of padding would be divided by its norm 0; a copy of a word stays finite and, without mass, receives no
    # attention.
    hidden = jnp.where(jnp.asarray(mask)[:, :, None], hidden, first)
    return (hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)).astype(dtype_of(model))


@eqx.filter_jit
def _embedded(form: Any, state: Any, ids: Array) -> Array:
    return nnx.merge(form, state).embed(ids)


@tabled("level", network="level", curves="target level", losses="step", radius="block")
class Bridge(NamedTuple):
    """The result of `bridge`. A curve is an `Average` over texts of the mean pairwise cosine of tokens at each level.

    **Attributes:**

    - `network`: The curve of the unmodified network.
    - `curves`: By name: "without feed-forward", "without norms", "on the sphere" (attention only, the norms replaced by
        a projection onto the sphere), "particles" (continuous time, no biases, one layer in time 1, beta 1), "fitted"
        (the particles with `time_per_layer` and `beta`), and, on request, "uniform" (beta 0, hence uniform attention,
        with its own time per layer). Recorded arrays lack the first three, which run the network.
    - `time_per_layer`, `beta`: The fitted numbers; beta is relative to the inverse temperature of the network.
    - `losses`: The mean squared difference between the curves of particles and network at each step of the fit,
        including rejected steps; infinite where the particles overflow.
    - `radius`: The norm of the hidden states that sets the unit of beta, their root mean square over the levels. Where
        norms act on the input of attention (T5, GPT-2, Llama), an array, (blocks,), of the norms that enter each block:
        the root mean square over texts of the median over tokens, since a first token may have 100 times the norm of
        the others.
    - `converged`: True if the fit reached its end: for each of time and beta, the next step without damping would
        change the number by less than 0.1 %, or a change of the number by a factor e would, to first order, change the
        loss by less than 0.1 %. By the second condition the fit also ends where beta goes to 0, which happens if
        uniform attention fits best.
    - `time_uniform`: The time per layer of "uniform"; None if it was not requested.
    """

    network: Average
    curves: dict[str, Average]
    time_per_layer: float
    beta: float
    losses: np.ndarray
    radius: float | Float[np.ndarray, " blocks"]
    converged: bool = False
    time_uniform: float | None = None

    __repr__ = short

    def summary(self) -> str:
        """The fitted numbers, and for each curve its distance to the curve of the network: root mean square over
        levels, correlation, and the last level ± its standard error."""
        end = "converged" if self.converged else "not converged"
        rows = [f"time per layer {self.time_per_layer:.4g}, beta {self.beta:.4g} of the network's own ({end})"]
        rows.append(f"network: mean cosine {levels(self.network.mean, self.network.error)}")
        for name, curve in self.curves.items():
            far = f"{self.rmse(name):.3g} away, correlation {self.correlation(name):.3g}"
            rows.append(f"{name}: {far}; {levels(curve.mean, curve.error)}")
        return "\n".join(rows)

    def difference(self, name: str) -> Average:
        """The difference between a curve and the curve of the network at each level, paired by text.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        return average_of(_kept(self._curve(name)) - _kept(self.network))

    def rmse(self, name: str) -> float:
        """The root mean square over levels of the difference between the mean curves.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        return float(np.sqrt(np.mean((self._curve(name).mean - self.network.mean) ** 2)))

    def correlation(self, name: str) -> float:
        """Pearson's correlation of the mean curves over levels; NaN if either curve is constant.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        a, b = (curve.mean - curve.mean.mean() for curve in (self._curve(name), self.network))
        size = np.sqrt(np.sum(a * a) * np.sum(b * b))
        return float(np.sum(a * b) / size) if size > 0 else float("nan")

    def _curve(self, name: str) -> Average:
        return self.curves[check_choice(name, "name", self.curves)]


def bridge(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    fit_on: Sequence[str] | Encoded | None = None,
    fit_steps: int = 30,
    first_step: float = 0.5,
    steps_per_layer: int = 4,
    uniform: bool = False,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Bridge:
    r"""Compare the similarity curve of a network with the curve that its heads predict as a particle model.

    The particles start from the directions of the embedded tokens as they enter the first layer, uncentred, so that
    both curves start from the same number. They move by `particle_field`, with the causal mask, the position bias of T5
    or the rotation of Llama where the network has them. At the last level they are scaled by the last norm, if there is
    one. Three networks that each lack a part show which part shapes the curve. Then the time per layer and beta
    are fitted to the least mean squared difference of the curves, by the steps of Levenberg and Marquardt in the
    logarithms of both, with exact derivatives of the curves from forward mode through `simulate`. A step that does not
    lower the loss is rejected. The fit stops at a minimum, which need not be the only one.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens; None for recorded arrays.

    **Other arguments:**

    - `fit_on`: Other texts to which time and beta are fitted, so that the curves of `texts` are predictions; None fits
        to `texts`. The losses are those of the texts of the fit.
    - `fit_steps`: The maximum number of steps of the fit; 0 leaves time and beta at 1. See `Bridge.converged`.
    - `first_step`: The bound on the norm of the first step in the logarithms; the damping adapts the later steps.
    - `steps_per_layer`: Steps of the solver (Bogacki and Shampine's third order, constant steps) in a layer.
    - `uniform`: If True, a time per layer is also fitted for beta = 0, as a baseline: the curve "uniform".
    - `length`, `batch_size`, `say`: As in `survey`.
    - `store`: A folder with one file for each network, as in `survey`, and one for the fit, written after each step. An
        interrupted run resumes from these files, and a run with more `fit_steps` continues a run with fewer.

    **Returns:**

    A `Bridge`.

    **Raises:**

    - `ValueError` if `fit_steps` is negative, `steps_per_layer` is not positive, `first_step` is not positive or above
        10, the network overflows, the particles overflow before the fit, weights were not recorded, or in the cases of
        `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        The particle model: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2. The
        steps of the fit: Marquardt, *An algorithm for least-squares estimation of nonlinear parameters* (Journal of
        SIAM, 1963).
    """
    check_surveyed(model, batch_size, store, say)
    fit_steps = check_integer(fit_steps, "fit_steps", least=0, most=MOST, remedy="pass 30, say")
    steps_per_layer = check_integer(steps_per_layer, "steps_per_layer", most=MOST, remedy="pass 4, say")
    check_flag(uniform, "uniform")
    first_step = check_number(first_step, "first_step", above=0, most=10, remedy="pass 0.5, say")
    norms_of(model)  # recorded arrays without weights are refused
    if fit_on is not None:
        check_texts(fit_on, "fit_on")
        if isinstance(model, Recorded):
            raise refusal("fit_on", "be None for recorded arrays", "it is given", "fit to the recorded texts")
    # All texts are encoded before the first network runs, so that a wrong text is refused at once.
    data = encoded(model, texts, length)
    other = data if fit_on is None else encoded(model, fit_on, length)
    file = lambda name: None if store is None else Path(store) / f"{name.replace(' ', '-')}.safetensors"
    curve = lambda changed, name, texts, finite=True: (
        survey(changed, texts, CURVE, batch_size=batch_size, keep=("cosine",), finite=finite, store=file(name)).levels
    )
    measured = curve(model, "network", data)
    radius = _radius(model, measured)
    say("network measured")
    # The parts of recorded arrays cannot be run again.
    parts = {} if isinstance(model, Recorded) else {
        "without feed-forward": without_feed_forward(model),
        "without norms": without_norms(model),
        "on the sphere": on_sphere(without_feed_forward(model), radius),
    }  # fmt: skip
    # A deep network without norms may overflow; its curve is then NaN, which is a result and not an error.
    curves = {name: curve(changed, name, data, finite=False)["cosine"] for name, changed in parts.items()}
    say("networks without parts measured")
    make = lambda texts: Particles.make(model, texts, radius, batch_size, steps_per_layer)
    fitted = make(other)
    settings: dict[str, Any] = {}
    # All settings that determine the fit, so that the file of another network, other texts or other steps is refused.
    if store is not None:  # reading all weights takes longer than running a short text
        settings = {"model": fingerprint(model, other.mask.shape[1]), "texts": digest(other)}
        settings |= {
            "radius": np.asarray(radius).tolist(),
            "batch_size": batch_size,
            "steps_per_layer": steps_per_layer,
            "first_step": first_step,
            "fit": "Levenberg-Marquardt",
        } | _marks(fitted.field)
    # With other texts for the fit, the returned curves are predictions for `texts`.
    target = _kept((measured if fit_on is None else curve(model, "network on what is fitted", other))["cosine"])
    run = lambda name, first: fit_scales(
        fitted, target, fit_steps, first_step, say, file(name), settings | ({"beta": 0} if name != "fit" else {}), first
    )
    fit = run("fit", AS_IT_COMES)
    without = run("fit uniform", UNIFORM) if uniform else None
    if fit_on is None:
        start, best, flat = fit.start, fit.best, None if without is None else without.best
    else:
        particles = make(data)
        start, best = (particles.predicted(scales) for scales in (AS_IT_COMES, fit.log_scales))
        flat = None if without is None else particles.predicted(without.log_scales)
    curves["particles"], curves["fitted"] = average_of(start), average_of(best)
    time_uniform = None
    if without is not None and flat is not None:
        curves["uniform"], time_uniform = average_of(flat), float(np.exp(without.log_scales[0]))
    time, beta = np.exp(fit.log_scales)
    return Bridge(measured["cosine"], curves, float(time), float(beta), fit.losses, radius, fit.converged, time_uniform)


def _marks(field: MultiHeadField) -> dict[str, Any]:
    """The rotation and the mask of the field, for the file of a fit. The result is empty for a field without rotation
    and with a full mask, so that older files without these entries stay readable for such fields only."""
    factors, marks = field.factors, {}
    assert factors is not None
    if factors.rotation is not None:
        marks["rotated"] = digest([np.asarray(part) for part in factors.rotation])
    if not isinstance(field.mask, FullMask):
        marks["mask"] = type(field.mask).__name__
    return marks


def _radius(model: Model | Recorded, levels: dict[str, Average]) -> float | Float[np.ndarray, " blocks"]:
    """The norm of the tokens that enter the layers, hence without the last level: one number for ALBERT, whose norms
    keep it constant, and one number for each block where norms act on the input of attention."""
    norm, _, order = norms_of(model)
    if norm is None:
        return float(np.sqrt(np.mean(levels["square"].mean[:-1])))
    squares = levels["median"].mean[:-1]
    return np.array([np.sqrt(np.mean(squares[order == block])) for block in range(order.max() + 1)])


def _level(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
    # Each text has at least two tokens, as `encoded` has checked.
    words = jnp.sum(mask, axis=1).astype(hidden.dtype)
    # `einsum` rather than a sum over two axes: XLA's older code for that sum takes fifteen seconds to compile.
    squares = einsum("bnd,bnd->b", hidden, hidden)
    lengths = jnp.where(mask, einsum("bnd,bnd->bn", hidden, hidden), jnp.full_like(hidden[..., 0], jnp.nan))
    # The median ignores a first token whose norm may be 100 times the norm of the others.
    median = jnp.nanmedian(lengths, axis=1)
    return {"cosine": jax.vmap(mean_cosine)(hidden, mask), "square": squares / words, "median": median}


CURVE = Measure(level=_level)


def _kept(average: Average) -> np.ndarray:
    assert average.values is not None
    return average.values
