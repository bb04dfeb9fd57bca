"""The similarity curve of a trained network, compared with the curve that its heads predict as a particle model.

The model is from Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2. Three
networks that each lack a part (`ablations`) stand between it and the network and show which part shapes the
curve; then the time per layer and beta are fitted (`fit`).

Invariants: all curves begin at the same number, the mean cosine of the embedded tokens; curves are compared text by
text, so that errors are errors of paired differences; every part of a run has its own file in the store.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._check import check_choice, check_flag, check_integer, check_number
from ..._field import MultiHeadField
from ..._mask import FullMask
from ..._misc import einsum
from ..._summary import levels, short
from ..measures.stream import Measure
from ..measures.survey import check_surveyed, check_texts, digest, encoded, fingerprint, survey
from ..measures.tally import Average, average_of
from ..networks.batch import Encoded
from ..networks.load import Model
from .ablations import on_sphere, without_feed_forward, without_norms
from .field import mean_cosine
from .fit import AS_IT_COMES, UNIFORM, fit_scales
from .particles import Particles


_MOST = 2**31 - 1


class Bridge(NamedTuple):
    """The result of `bridge`. A curve is an `Average` over texts of the mean pairwise cosine of tokens at each level.

    **Attributes:**

    - `network`: The curve of the unmodified network.
    - `curves`: By name: "without feed-forward", "without norms", "on the sphere" (attention only, the norms replaced by
        a projection onto the sphere), "particles" (continuous time, no biases, one layer in time 1, beta 1), "fitted"
        (the particles with `time_per_layer` and `beta`), and, on request, "uniform" (beta 0, hence uniform attention,
        with its own time per layer).
    - `time_per_layer`, `beta`: The fitted numbers; beta is relative to the inverse temperature of the network.
    - `losses`: The mean squared difference between the curves of particles and network at each step of the fit,
        including rejected steps; infinite where the particles overflow.
    - `radius`: The norm of the hidden states that sets the unit of beta, their root mean square over the levels. Where
        norms act on the input of attention (T5, GPT-2, Llama), an array, (blocks,), of the norms that enter each block:
        the root mean square over texts of the median over tokens, since a first token may have 100 times the norm of
        the others.
    - `converged`: True if the fit reached its end: each of time and beta would change by less than 0.1 %, or the loss
        would if the number changed by a factor e. By this rule the fit also ends where beta goes to 0, which happens if
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

    def __repr__(self) -> str:
        return short(self)

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
    model: Model,
    texts: Sequence[str] | Encoded,
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

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

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
        10, the network overflows, the particles overflow before the fit, or in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        The particle model: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2. The
        steps of the fit: Marquardt, *An algorithm for least-squares estimation of nonlinear parameters* (Journal of
        SIAM, 1963).
    """
    check_surveyed(model, batch_size, store, say)
    fit_steps = check_integer(fit_steps, "fit_steps", least=0, most=_MOST, remedy="pass 30, say")
    steps_per_layer = check_integer(steps_per_layer, "steps_per_layer", most=_MOST, remedy="pass 4, say")
    check_flag(uniform, "uniform")
    first_step = check_number(first_step, "first_step", above=0, most=10, remedy="pass 0.5, say")
    if fit_on is not None:
        check_texts(fit_on, "fit_on")
    # All texts are encoded before the first network runs, so that a wrong text is refused at once.
    data = encoded(model, texts, length)
    other = data if fit_on is None else encoded(model, fit_on, length)
    file = lambda name: None if store is None else Path(store) / f"{name.replace(' ', '-')}.safetensors"
    curve = lambda changed, name, texts, finite=True: (
        survey(changed, texts, _CURVE, batch_size=batch_size, keep=("cosine",), finite=finite, store=file(name)).levels
    )
    measured = curve(model, "network", data)
    radius = _radius(model, measured)
    say("network measured")
    parts = {
        "without feed-forward": without_feed_forward(model),
        "without norms": without_norms(model),
        "on the sphere": on_sphere(without_feed_forward(model), radius),
    }
    # A deep network without norms may overflow; its curve is then NaN, which is a result and not an error.
    curves = {name: curve(changed, name, data, finite=False)["cosine"] for name, changed in parts.items()}
    say("networks without parts measured")
    make = lambda texts: Particles.make(model, texts, radius, batch_size, steps_per_layer)
    fitted = make(other)
    asked: dict[str, Any] = {}
    # All settings that determine the fit, so that the file of another network, other texts or other steps is refused.
    if store is not None:  # reading all weights takes longer than running a short text
        asked = {"model": fingerprint(model, other.mask.shape[1]), "texts": digest(other)}
        asked |= {
            "radius": np.asarray(radius).tolist(),
            "batch_size": batch_size,
            "steps_per_layer": steps_per_layer,
            "first_step": first_step,
            "fit": "Levenberg-Marquardt",
        } | _marks(fitted.field)
    # With other texts for the fit, the returned curves are predictions for `texts`.
    target = _kept((measured if fit_on is None else curve(model, "network on what is fitted", other))["cosine"])
    run = lambda name, first: fit_scales(
        fitted, target, fit_steps, first_step, say, file(name), asked | ({"beta": 0} if name != "fit" else {}), first
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


def _radius(model: Model, levels: dict[str, Average]) -> float | Float[np.ndarray, " blocks"]:
    """The norm of the tokens that enter the layers, hence without the last level: one number for ALBERT, whose norms
    keep it constant, and one number for each block where norms act on the input of attention."""
    if model.network.norm_scales() is None:
        return float(np.sqrt(np.mean(levels["square"].mean[:-1])))
    order, squares = np.asarray(model.network.order()), levels["median"].mean[:-1]
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


_CURVE = Measure(level=_level)


def _kept(average: Average) -> np.ndarray:
    assert average.values is not None
    return average.values
