"""From a trained network to the particle model: how far its own heads, as particles, predict its similarity curve."""

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
from jax import lax
from jaxtyping import Array, Bool, Float

from .._check import check_choice, check_integer, check_number
from .._simulate import simulate
from ._albert import Albert
from ._batch import Encoded
from ._load import Model
from ._particles import FactoredHeadsField, mean_cosine, particle_field
from ._parts import on_sphere, without_feed_forward, without_norms
from ._stream import Measure
from ._survey import check_surveyed, check_texts, digest, dtype_of, encoded, fingerprint, survey
from ._tally import Average, Tally, average_of


_CLOSE = 1e-3  # three digits
_MOST = 2**31 - 1


class Bridge(NamedTuple):
    """What `bridge` returns. A curve is the mean cosine of the pairs of a text at each level, the `Average` over texts.

    **Attributes:**

    - `network`: The curve of the network as it is.
    - `curves`: By name: "without feed-forward", "without norms", "on the sphere" (attention only, the norms replaced by
        a projection onto the sphere), "particles" (continuous time, no biases, one layer in time 1, beta 1), "fitted"
        (the same with `time_per_layer` and `beta`).
    - `time_per_layer`, `beta`: What was fitted; beta is relative to the network's own.
    - `losses`: The mean squared difference of the curves of particles and network, at each step of the fit, also
        those that were taken back; infinite where the particles overflow.
    - `radius`: The length of hidden states that sets the unit of beta, their root mean square over the levels; of T5
        an array, (blocks,), of what enters each block.
    - `converged`: Whether the fit came to its end: time and beta would each change by less than 0.1 %, or the loss
        would if it changed by a factor e. So the fit ends where beta goes to 0, if attention without preference does
        best.

    Source: this library.
    """

    network: Average
    curves: dict[str, Average]
    time_per_layer: float
    beta: float
    losses: np.ndarray
    radius: Any
    converged: bool = False

    def difference(self, name: str) -> Average:
        """A curve less that of the network, level by level, paired by text.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        return average_of(_kept(self._curve(name)) - _kept(self.network))

    def rmse(self, name: str) -> float:
        """The root mean square over levels of the difference of the mean curves.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        return float(np.sqrt(np.mean((self._curve(name).mean - self.network.mean) ** 2)))

    def correlation(self, name: str) -> float:
        """Pearson's correlation over levels of the mean curves; NaN if one of them is constant.

        **Raises:**

        - `ValueError` if there is no curve of this name.
        """
        a, b = (curve.mean - curve.mean.mean() for curve in (self._curve(name), self.network))
        size = np.sqrt(np.sum(a * a) * np.sum(b * b))
        return float(np.sum(a * b) / size) if size > 0 else float("nan")

    def _curve(self, name: str) -> Average:
        return self.curves[check_choice(name, "name", self.curves)]


def bridge(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    fit_on: Sequence[str] | Encoded | None = None,
    fit_steps: int = 30,
    first_step: float = 0.5,
    steps_per_layer: int = 4,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Bridge:
    r"""How far the particle model with a network's own heads predicts the similarity of its tokens, layer by layer.

    The particles start from the directions of the embedded tokens as they enter the first layer, uncentred, so that
    both curves start from the same number, and move by `particle_field`; those of T5 know positions by its bias, and
    are scaled by its last norm at the last level. Between this and the network stand three
    networks that lack a part each, so that one sees which part makes the curve. Then two numbers are fitted, the time
    that a layer takes and beta, to the least mean squared difference of the curves, by the steps of Levenberg and
    Marquardt in their logarithms, with exact derivatives of the curves through `simulate` in forward mode. A step that
    does no good is taken back. The fit ends by itself, at a minimum that need not be the only one.

    **Arguments:**

    - `model`: What `load` returned.
    - `texts`: The texts, or the `Encoded` of them. At least two tokens each.

    **Other arguments:**

    - `fit_on`: Other texts, which time and beta are fitted to, so that `texts` measure what they predict; None fits to
        `texts` themselves. The losses are of these.
    - `fit_steps`: The most steps of the fit; 0 leaves time and beta at 1. See `Bridge.converged`.
    - `first_step`: How long the first of them may be, in the logarithm; the next ones are as long as they do good.
    - `steps_per_layer`: Steps of the solver (Bogacki and Shampine's third order, constant steps) in a layer.
    - `length`, `batch_size`, `say`: As in `survey`.
    - `store`: A folder, in which each network has its file, as in `survey`, and the fit another, written after each
        step. A run that was killed goes on from there, and one of more `fit_steps` from the end of one of fewer.

    **Returns:**

    A `Bridge`.

    **Raises:**

    - `ValueError` if `fit_steps` is negative, `steps_per_layer` is not positive, `first_step` is not positive or above
        10, the network or the particles as they come overflow, and as in `survey`.

    **Warns:** if texts are longer than the positions and `length` does not say where to cut them, with how many.

    ??? cite "Source"

        The particle model: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2. Its
        comparison with the network that it models, and the fit: this library. The steps: Marquardt, *An algorithm for
        least-squares estimation of nonlinear parameters* (Journal of SIAM, 1963).
    """
    check_surveyed(model, batch_size, store, say)
    fit_steps = check_integer(fit_steps, "fit_steps", least=0, most=_MOST, remedy="pass 30, say")
    steps_per_layer = check_integer(steps_per_layer, "steps_per_layer", most=_MOST, remedy="pass 4, say")
    first_step = check_number(first_step, "first_step", above=0, most=10, remedy="pass 0.5, say")
    if fit_on is not None:
        check_texts(fit_on, "fit_on")
    data = encoded(model, texts, length)
    other = data if fit_on is None else encoded(model, fit_on, length)
    file = lambda name: None if store is None else Path(store) / f"{name.replace(' ', '-')}.safetensors"
    curve = lambda changed, name, texts, finite=True: (
        survey(changed, texts, _CURVE, batch_size=batch_size, keep=("cosine",), finite=finite, store=file(name)).levels
    )
    found = curve(model, "network", data)
    radius = _radius(model, found["square"].mean[:-1])
    say("network measured")
    parts = {
        "without feed-forward": without_feed_forward(model),
        "without norms": without_norms(model),
        "on the sphere": on_sphere(without_feed_forward(model), radius),
    }
    curves = {name: curve(changed, name, data, finite=False)["cosine"] for name, changed in parts.items()}
    say("networks without parts measured")
    make = lambda texts: _Particles.make(model, texts, radius, batch_size, steps_per_layer)
    target, kept = _kept(found["cosine"]), file("fit")
    asked: dict[str, Any] = {}
    if kept is not None:  # reading all weights takes longer than a short text
        asked = {"model": fingerprint(model), "texts": digest(other), "radius": np.asarray(radius).tolist()}
        asked |= {
            "batch_size": batch_size,
            "steps_per_layer": steps_per_layer,
            "first_step": first_step,
            "fit": "Levenberg-Marquardt",
        }
    if fit_on is None:
        fit = _fit(make(data), target, fit_steps, first_step, say, kept, asked)
        start, best = fit.start, fit.best
    else:
        of_other = _kept(curve(model, "network on what is fitted", other)["cosine"])
        fit = _fit(make(other), of_other, fit_steps, first_step, say, kept, asked)
        particles = make(data)
        start, best = (particles.curves(scales)[0] for scales in (np.zeros(2), fit.log_scales))
    curves["particles"], curves["fitted"] = average_of(start), average_of(best)
    time, beta = np.exp(fit.log_scales)
    return Bridge(found["cosine"], curves, float(time), float(beta), fit.losses, radius, fit.converged)


class _Particles(NamedTuple):
    """The particle model of all texts, in batches of one shape."""

    field: FactoredHeadsField
    last_scale: Array | None
    starts: list[tuple[Array, Array]]
    levels: int
    steps_per_layer: int
    texts: int

    @classmethod
    def make(cls, model: Model, data: Encoded, radius: Any, batch_size: int, steps_per_layer: int) -> "_Particles":
        texts = len(data.mask)
        size = min(batch_size, texts)
        starts = []
        for start in range(0, texts, size):
            rows = np.minimum(np.arange(start, start + size), texts - 1)
            starts.append((_embed(model, data.token_ids[rows], data.mask[rows]), jnp.asarray(data.mask[rows])))
        field = particle_field(model, radius, n=data.mask.shape[1])
        network, scale = model.network, None
        if not isinstance(network, Albert):
            scale = jnp.asarray(network.encoder.final_layer_norm.weight[...])
        return cls(field, scale, starts, model.num_layers + 1, steps_per_layer, texts)

    def curves(self, log_scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The curve of each text, (texts, levels), and its derivative by both logarithms, (texts, levels, 2)."""
        scales = jnp.asarray(log_scales, self.starts[0][0].dtype)
        parts = [
            _with_slopes(self.field, scales, self.last_scale, *start, self.levels, self.steps_per_layer)
            for start in self.starts
        ]
        # The copies that fill the last batch are cut off.
        curves, slopes = (
            np.concatenate([np.asarray(p, np.float64) for p in part])[: self.texts] for part in zip(*parts, strict=True)
        )
        return curves, slopes


class _Fit(NamedTuple):
    """The best logarithms of time per layer and beta, the curves with them and before the fit, all losses, and whether
    it came to its end."""

    log_scales: np.ndarray
    best: np.ndarray
    start: np.ndarray
    losses: np.ndarray
    converged: bool


def _fit(
    particles: Any, target: np.ndarray, steps: int, first: float, say: Callable[[str], None],
    store: Path | None = None, asked: dict[str, Any] | None = None,
) -> _Fit:  # fmt: skip
    now = log_scales = slope = np.zeros(2)
    curvature, damping, losses, converged = np.zeros((2, 2)), 0.0, [], False
    # The losses and derivatives of all steps, the curves of the first, and those of each step that was the best so far:
    # with them the fit goes again, without the particles, where a run that was killed went.
    done = Tally()
    if store is not None and store.exists():
        # Curves that overflow are kept too: the fit goes back from there.
        done.restore(store, asked or {}, most=2**31, finite=False)
        _check_steps(done, store)
        say(f"resuming the fit after step {done.texts - 1}")
    known = done.texts
    start = best = done.arrays.get("start", np.empty(0))
    for step in range(steps + 1):
        if step < known:
            value, curves = float(done.arrays["values"][step]), None
            towards, bend = done.arrays["slopes"][step], done.arrays["curvatures"][step]
        else:
            curves, by_scales = particles.curves(now)
            apart = curves - target
            value, towards = float(np.mean(apart**2)), 2 * np.mean(apart[..., None] * by_scales, axis=(0, 1))
            bend = 2 * np.einsum("tlk,tlm->km", by_scales, by_scales) / apart.size
            start = curves if step == 0 else start
        overflows = not all(np.all(np.isfinite(found)) for found in (value, towards, bend))
        if overflows and step == 0:
            raise ValueError(
                "particles must stay finite, but as they come, with time 1 and beta 1, they overflow; pass a larger "
                f"steps_per_layer than {particles.steps_per_layer}, or load the model with dtype=float64."
            )
        better = not overflows and (step == 0 or value < min(losses))
        if better:
            log_scales, slope, curvature = now, towards, bend
            best = done.arrays[f"curves {step}"] if curves is None else curves
            damping = damping / 10 if step else float(np.linalg.norm(slope)) / first
        else:
            damping = 10 * damping
        losses.append(np.inf if overflows else value)
        if store is not None and curves is not None:
            done.append("values", np.array([value]))
            done.append("slopes", towards[None])
            done.append("curvatures", bend[None])
            done.arrays |= {"start": start} | ({f"curves {step}": curves} if better else {})
            done.texts = step + 1
            done.save(store, asked or {})
        say(f"step {step} of at most {steps}: loss {value:.4g}, time {np.exp(now[0]):.4g}, beta {np.exp(now[1]):.4g}")
        # If the curves were straight in the logarithms, this would be the way to the best.
        way = np.linalg.lstsq(curvature, -slope)[0]
        converged = bool(np.all((np.abs(way) < _CLOSE) | (np.abs(slope) < _CLOSE * min(losses))))
        if converged:
            break
        now = log_scales + np.linalg.solve(curvature + damping * np.eye(2), -slope)
    return _Fit(log_scales, best, start, np.array(losses if steps else []), converged and steps > 0)


def _check_steps(done: Tally, store: Path) -> None:
    """Raise a ValueError unless there is a row for each step, and all curves that the steps ask for."""
    rows = {"values": (), "slopes": (2,), "curvatures": (2, 2)}
    fits = all(name in done.arrays and done.arrays[name].shape == (done.texts, *rows[name]) for name in rows)
    best = np.inf
    for step, value in enumerate(done.arrays["values"] if fits else ()):
        better = np.all(np.isfinite([value, *done.arrays["slopes"][step], *done.arrays["curvatures"][step].ravel()]))
        if (better and value < best) or step == 0:
            fits, best = fits and f"curves {step}" in done.arrays, value
    if not fits or "start" not in done.arrays:
        raise ValueError(f"store must be whole, but {store} lacks steps of the fit; remove it, or choose another file.")


def _curves_of(
    field: Any, log_scales: Array, last_scale: Array | None, x0: Array, mask: Array, levels: int, steps_per_layer: int
) -> Array:
    time, beta = jnp.exp(log_scales[0]), jnp.exp(log_scales[1])

    def seen(t: Array, x: Array, word: Array) -> Array:
        """The mean cosine, at the last level of what the last norm makes of the tokens."""
        if last_scale is None:
            return mean_cosine(x, word)
        return mean_cosine(jnp.where(t > levels - 1.5, x * last_scale[None], x), word)

    def of_text(x0: Float[Array, "n d"], word: Bool[Array, " n"]) -> Float[Array, " levels"]:
        where = lambda field: (field.beta, field.masses)
        heads = eqx.tree_at(where, field, (beta, word.astype(x0.dtype)), is_leaf=lambda leaf: leaf is None)
        run = simulate(
            time * heads,
            x0,
            jnp.arange(levels, dtype=x0.dtype),
            word,
            solver=dfx.Bosh3(),
            stepsize_controller=dfx.ConstantStepSize(),
            dt0=1 / steps_per_layer,
            adjoint=dfx.ForwardMode(),
            save=seen,
            max_steps=levels * steps_per_layer + 8,
        )
        return run.xs

    return jax.vmap(of_text)(x0, mask)


@eqx.filter_jit
def _with_slopes(field, log_scales, last_scale, x0, mask, levels, steps_per_layer) -> tuple[Array, Array]:
    def found(log_scales):
        curves = _curves_of(field, log_scales, last_scale, x0, mask, levels, steps_per_layer)
        return curves, curves

    slopes, curves = jax.jacfwd(found, has_aux=True)(log_scales)
    return curves, slopes


def _radius(model: Model, squares: np.ndarray) -> Any:
    """The length of hidden states from the mean squares of what enters each layer: of ALBERT's one number, its norms
    hold them there; of T5's one for each block."""
    if isinstance(model.network, Albert):
        return float(np.sqrt(np.mean(squares)))
    order = np.asarray(model.network.order())
    return np.array([np.sqrt(np.mean(squares[order == block])) for block in range(order.max() + 1)])


def _embed(model: Model, ids: np.ndarray, mask: np.ndarray) -> Array:
    """The directions of the embedded tokens; in place of padding that of the first word, without mass."""
    form, state = nnx.split(model.network)
    hidden = _embedded(form, state, jnp.asarray(ids, jnp.int32))
    first = jnp.take_along_axis(hidden, jnp.asarray(np.argmax(mask, axis=1))[:, None, None], axis=1)
    hidden = jnp.where(jnp.asarray(mask)[:, :, None], hidden, first)
    return (hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)).astype(dtype_of(model))


@eqx.filter_jit
def _embedded(form: Any, state: Any, ids: Array) -> Array:
    return nnx.merge(form, state).embed(ids)


def _level(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
    words = jnp.sum(mask, axis=1).astype(hidden.dtype)
    # As a product: XLA's older code for the sum of squares over two axes takes fifteen seconds to compile.
    squares = jnp.einsum("bnd,bnd->b", hidden, hidden, precision=lax.Precision.HIGHEST)
    return {"cosine": jax.vmap(mean_cosine)(hidden, mask), "square": squares / words}


_CURVE = Measure(level=_level)


def _kept(average: Average) -> np.ndarray:
    assert average.values is not None
    return average.values
