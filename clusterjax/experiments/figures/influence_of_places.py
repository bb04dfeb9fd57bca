"""How much does the token at each place of a text move the last token of a causal network, and is the profile that of
causal particles?

For causal attention with weights proportional to $e^{-λ(i - j)/n}$ the linear influence of the place s = j/n on the
last token, of tokens without order whose first mode grows at the rate a, is
$g(s) = λ e^{λs}/(e^λ - 1) √(at/w) I_1(2√(atw))$ with $w = log((e^λ - 1)/(e^{λs} - 1))$. In the logarithm
$y = log(e^{λr} - 1)$ of the place r the generator is a convolution with $e^{-y}$, whose powers give this series; the
integral of g over s is $e^{at} - 1$. For a small time g is an exponential $e^{λs}$ (recency alone); for a larger one
also early places have influence (a U).

Two influences of the place j on the last token are measured, in a text of n tokens. By gradient: the norm (Frobenius)
of the derivative of the last token's final normed state by the embedding of token j, from random projections. By
patching: the Kullback-Leibler divergence of the next token's prediction from that with the embedding of token j
replaced by that of a token of another article, at random places of each part of the text. Either is divided by its mean
over the places between the first and the last token of the text. These places are divided into equal parts; the middle
is the two parts in the middle. The first token is separate, because it is an attention sink; the last token is
separate, because g does not describe the influence of a token on itself. The formula has a scale besides λ and at, the
exponential a scale besides its rate, 0 or above; both are fitted to the parts of the articles 0, 2, ... and judged on
those of the articles 1, 3, .... Explained variance is that of the mean of each part. The fit does not use the first
token.

What would refute each claim, of gradient and patching separately, was written before the first run:
- "The last part has more influence than the middle": the difference, in units of the mean influence, is not above zero
  by two standard errors over articles, or, with few articles, by as many as are as improbable;
- "The first token has more than the middle": its difference is not above zero by as many, or does not exceed by as many
  that of the same tokens in random order, or of random weights, of the spread before training and of another;
- "The first part without the first token has more than the middle (a U)": the difference is not above zero by as many;
- "The formula explains held-out influence better than an exponential": the gain of explained variance is not above zero
  by as many, or the formula explains no more than the constant. An exponential is a limit of the formula, so that a
  fit that finds no more than it has no gain.
The identity fails where a token that is replaced by itself changes the prediction.

Source: Duerinckx, Geshkovski and Rossi, *Kinetic theory for Transformers and the lost-in-the-middle phenomenon*
(2605.09213), for particles; no claim of the paper is about SmolLM2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.patching import at_place
from ...probe.measures.survey import Clustered, clustered_error
from ...probe.networks.edits import of_layers
from ...probe.networks.network import Network, run_layers_measured, scan_layers
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.causal import ABSENT, OWN, SMOLLM2, Reading, name_of, reading_or_own, untrained
from ..shared.controls import Starts, keys_of, starts_of
from ..shared.exact import influence_of_place
from ..shared.layout import one_legend, panels
from ..shared.networks import USUAL, articles_words, one_of_each


KINDS = ("gradient", "patching")
TEXTS = 32
BATCH = 4
CONTROLLED = 6  # the largest number of texts of a control, of different articles
SAME = 1e-6  # nats: the divergence that float32 may cause
# The least and the largest lambda, time and rate of an exponential that a fit tries.
RATES, TIMES = (1e-2, 200.0), (1e-3, 30.0)
SURELY = "by two standard errors over articles, or, with few articles, by as many as are as improbable"
RANDOM, OTHER = "random weights", f"random weights, spread {USUAL:g}"
LOOKS = {
    "network": (OKABE_ITO[0], "o"), "shuffled tokens": (OKABE_ITO[1], "s"), RANDOM: (OKABE_ITO[2], "^"),
    OTHER: (OKABE_ITO[3], "v"),
}  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    parts: int = parameter(8, "the number of parts between the first and the last token", least=4, most=64)
    sampled: int = parameter(1, "the number of places of each part that are patched", least=1, most=64)
    projections: int = parameter(4, "the number of random projections of the gradient", least=1, most=256, quick=2)
    draws: int = parameter(3, "the number of networks of random weights of each spread", least=2, most=32, quick=2)


class Fit(NamedTuple):
    """The formula and the exponential, fitted to the parts of some articles and judged on those of others."""

    # `formula`, `exponential`: the parameters, of which the last is the scale
    formula: tuple[float, ...]
    exponential: tuple[float, ...]
    explained: tuple[float, float]  # the share of the variance of the held-out parts that either explains
    gain: Clustered  # the explained variance of the formula beyond that of the exponential
    beyond_constant: Clustered  # the explained variance of the formula beyond that of the best constant


class Results(NamedTuple):
    p: Parameters
    own: bool  # True if the network is the model of the package, because SmolLM2 is not installed
    reading: Reading
    # The influence of the first token, the parts and the last token by kind, in units of the mean over the parts,
    # (texts, parts + 2)
    network: dict[str, np.ndarray]
    rows: np.ndarray  # the texts of the controls
    controls: dict[str, dict[str, np.ndarray]]  # the influence in each control, (networks, rows, parts + 2)
    fits: dict[str, Fit]
    off: float  # the largest divergence if tokens are replaced by themselves

    @property
    def articles(self) -> np.ndarray:
        return self.reading.articles

    @property
    def called(self) -> str:
        return name_of(self.own)

    @property
    def n(self) -> int:
        return self.reading.texts.mask.shape[1]

    def mean(self, values: np.ndarray) -> Clustered:
        return clustered_error(values, self.articles)

    def middle(self, values: np.ndarray) -> np.ndarray:
        """The mean over the parts in the middle, (..., texts)."""
        return values[..., 1 + (self.p.parts - 1) // 2 : 2 + self.p.parts // 2].mean(axis=-1)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    # A text takes as long as ten forward passes, and more texts of one article tell little.
    texts = settings if settings.quick or settings.most_texts else replace(settings, most_texts=TEXTS)
    return measure_reading(p, *reading_or_own(texts, say), settings.seed, say)


def measure_reading(p: Parameters, reading: Reading, own: bool, seed: int, say: Say) -> Results:
    model, texts, articles = reading.model, reading.texts, reading.articles
    rows = one_of_each(articles, CONTROLLED)
    rng = np.random.default_rng(seed)
    # All networks have the same projections, places and replacements.
    n, width = texts.mask.shape[1], model.network.sizes.hidden_size
    directions = rng.normal(size=(p.projections, len(articles), width)).astype(np.float32)
    places = np.stack([places_of(n, p, rng) for _ in articles])
    others = replacements(texts.token_ids, articles, places, rng)

    def run(name: str, model: probe.Model, ids: np.ndarray, chosen: Any) -> dict[str, np.ndarray]:
        say(f"measuring gradients: {name}")
        gradient = sensitivities(model, ids, directions[:, chosen])
        say(f"measuring patches: {name}")
        patched = divergences(model, ids, places[chosen], others[chosen])
        ends = lambda values, inner: in_units(np.column_stack([values[:, 0], inner, values[:, -1]]), n)
        return {
            "gradient": ends(gradient, by_part(gradient[:, 1:-1], p.parts)),
            "patching": ends(patched, patched[:, 1:-1].reshape(len(ids), p.parts, -1).mean(axis=2)),
        }

    network = run("the network", model, texts.token_ids, np.arange(len(articles)))
    few_texts = probe.Encoded(texts.token_ids[rows], texts.mask[rows])
    shuffled = probe.shuffle_tokens(few_texts, keys_of(seed, 1)[0])
    several = {"shuffled tokens": [run("shuffled tokens", model, shuffled.token_ids, rows)]}
    for name, spread in ((RANDOM, None), (OTHER, USUAL)):
        several[name] = [
            run(f"{name}, {k} of {p.draws}", untrained(model, key, spread), few_texts.token_ids, rows)
            for k, key in enumerate(keys_of(seed, p.draws), 1)
        ]
    controls = {name: {kind: np.stack([influence[kind] for influence in runs]) for kind in KINDS}
                for name, runs in several.items()}  # fmt: skip
    say("fitting the formula")
    fits = {kind: fit_of(network[kind][:, 1:-1], articles, n) for kind in KINDS}
    first = texts.token_ids[:1]
    off = divergences(model, first, places[:1], np.take_along_axis(first, places[:1], axis=1))
    return Results(p, own, reading, network, rows, controls, fits, float(off.max()))


def places_of(n: int, p: Parameters, rng: np.random.Generator) -> np.ndarray:
    """The places that are patched: the first token, a few random ones of each part, and the last token."""
    inner = [
        np.sort(rng.choice(part, p.sampled, replace=len(part) < p.sampled))
        for part in np.array_split(np.arange(1, n - 1), p.parts)
    ]
    return np.concatenate([[0], *inner, [n - 1]])


def replacements(ids: np.ndarray, articles: np.ndarray, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A token of a text of another article for each place, which differs from the token at the place."""
    drawn = np.empty(places.shape, ids.dtype)
    for row, article in enumerate(articles):
        pool = ids[articles != article].ravel()
        for k, place in enumerate(places[row]):
            drawn[row, k] = rng.choice(pool[pool != ids[row, place]])
    return drawn


def by_part(values: np.ndarray, parts: int) -> np.ndarray:
    """The means of the parts of the last axis."""
    return np.stack([part.mean(axis=-1) for part in np.array_split(values, parts, axis=-1)], axis=-1)


def in_units(values: np.ndarray, n: int) -> np.ndarray:
    """Values of the first token, the parts and the last token, divided by the mean over the places of the parts."""
    sizes = [len(part) for part in np.array_split(np.arange(n - 2), values.shape[1] - 2)]
    return values / np.average(values[:, 1:-1], axis=1, weights=sizes)[:, None]


def sensitivities(model: probe.Model, ids: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """The norm of the derivative of the last token's final state by each embedding, (texts, n), as estimated from
    normal directions, (projections, texts, d)."""
    form, state = nnx.split(model.network)
    parts = []
    for begin in range(0, len(ids), BATCH):
        # The last batch is filled with its first text, so that one program serves all batches.
        chosen = np.minimum(np.arange(begin, begin + min(BATCH, len(ids))), len(ids) - 1)
        norms = _sensitivities(form, state, jnp.asarray(ids[chosen]), jnp.asarray(directions[:, chosen]))
        parts.append(np.asarray(norms, np.float64)[: len(ids) - begin])
    return np.concatenate(parts)


@eqx.filter_jit
def _sensitivities(form: Any, state: Any, ids: Array, directions: Array) -> Array:
    network: Network = nnx.merge(form, state)
    mask = jnp.ones(ids.shape, bool)
    start, step = at_place(network, ids, mask, "stream")

    def last(x: Array) -> Array:
        layer_edits = of_layers(network.edits, slice(network.num_layers))
        # Only the stream is carried: what `step` also returns is not needed.
        only = lambda block, hidden, given: (step(block, hidden, given)[0], None)
        return network.finish(scan_layers(network, only, x, ids.shape[1], layer_edits, edited=True)[0])[:, -1]

    _, pull = jax.vjp(last, start)
    # The mean of |J^T z|^2 over normal z is the squared Frobenius norm of J.
    squares = jax.lax.map(lambda z: jnp.sum(pull(z.astype(start.dtype))[0] ** 2, axis=-1), directions)
    return jnp.sqrt(jnp.mean(squares, axis=0))


def divergences(model: probe.Model, ids: np.ndarray, places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The divergence of the prediction after each text from that with another token at one place, (texts, places)."""
    form, state = nnx.split(model.network)
    rows = []
    for text, at, new in zip(ids, places, others, strict=True):
        copies = np.tile(text, (1 + len(at), 1))
        copies[1 + np.arange(len(at)), at] = new
        scores = np.asarray(_scores(form, state, jnp.asarray(copies)), np.float64)
        log_p = scores[0] - np.log(np.sum(np.exp(scores[0] - scores[0].max()))) - scores[0].max()
        # log sum p e^delta - sum p delta: small divergences lose no digits.
        change = scores[1:] - scores[0]
        change -= change.max(axis=1, keepdims=True)
        rows.append(np.log(np.sum(np.exp(log_p + change), axis=1)) - np.sum(np.exp(log_p) * change, axis=1))
    return np.maximum(np.stack(rows), 0.0)


@eqx.filter_jit
def _scores(form: Any, state: Any, ids: Array) -> Array:
    network: Network = nnx.merge(form, state)
    last, _ = run_layers_measured(network, jnp.ones(ids.shape, bool), (ids,), None)
    return network.logits(last[:, -1:])[:, 0]


def exponential(s: np.ndarray, rate: float) -> np.ndarray:
    return np.exp(rate * (s - 1))


def scaled(curve: Callable[..., np.ndarray], parameters: Any, n: int, parts: int) -> np.ndarray:
    """A curve with a scale, in the mean over the places of each part."""
    *shape, scale = parameters
    return scale * by_part(curve(np.arange(2, n) / n, *shape), parts)


def fitted(curve: Callable[..., np.ndarray], target: np.ndarray, n: int, *bounds: tuple[float, float]) -> tuple:
    """The parameters within bounds, and the scale, that leave the least squared error of the parts."""
    import scipy.optimize

    def best(logs: np.ndarray) -> tuple[float, float]:
        shape = scaled(curve, (*np.exp(logs), 1.0), n, len(target))
        scale = max(float(shape @ target / (shape @ shape)), 0.0)
        return float(np.sum((target - scale * shape) ** 2)), scale

    logs = [np.log(bound) for bound in bounds]
    grid = np.stack(np.meshgrid(*(np.linspace(low, high, 25) for low, high in logs), indexing="ij"), axis=-1)
    begin = min(grid.reshape(-1, len(bounds)), key=lambda x: best(x)[0])
    options = {"xatol": 1e-8, "fatol": 1e-14, "maxiter": 4000, "maxfev": 4000}
    optimum = scipy.optimize.minimize(lambda x: best(x)[0], begin, method="Nelder-Mead", bounds=logs, options=options).x
    return (*map(float, np.exp(optimum)), best(optimum)[1])


def fit_of(values: np.ndarray, articles: np.ndarray, n: int) -> Fit:
    """The `Fit` of the influence of the parts of each text, (texts, parts)."""
    odd = np.unique(articles, return_inverse=True)[1] % 2 == 1
    target, held_out, parts = values[~odd].mean(axis=0), values[odd], values.shape[1]
    ours = fitted(influence_of_place, target, n, RATES, TIMES)
    recency = fitted(exponential, target, n, RATES)
    variance = np.sum((held_out.mean(axis=0) - held_out.mean()) ** 2)
    ours_there, recency_there = scaled(influence_of_place, ours, n, parts), scaled(exponential, recency, n, parts)
    predictions = (ours_there, recency_there, np.full(parts, held_out.mean()))
    # The difference of the squared errors of two predictions is linear in the text, so that its mean over texts is the
    # difference for the mean of the texts.
    errors = [np.sum((held_out - prediction) ** 2, axis=1) / variance for prediction in predictions]
    explained = [float(1 - np.sum((held_out.mean(axis=0) - prediction) ** 2) / variance) for prediction in predictions]
    beyond = [clustered_error(other - errors[0], articles[odd]) for other in errors[1:]]
    return Fit(ours, recency, (explained[0], explained[1]), *beyond)


def more(m: Results, kind: str, column: int, name: str) -> Found:
    """The influence of a column beyond that of the middle."""
    values = m.network[kind]
    beyond = m.mean(values[:, column] - m.middle(values))
    words = [plus_minus(*m.mean(numbers)[:2]) for numbers in (values[:, column], m.middle(values))]
    measured = f"{name} {words[0]}, middle {words[1]}, difference {plus_minus(beyond.mean, beyond.error)}"
    return Found(measured, beyond.above(), beyond.mean, beyond.error)


def first_beyond(m: Results, kind: str) -> Found:
    """The influence of the first token beyond that of the middle, also beyond that of all controls."""
    found, units = more(m, kind, 0, "first token"), m.articles[m.rows]
    difference = {name: control[kind][..., 0] - m.middle(control[kind]) for name, control in m.controls.items()}
    of_rows = m.network[kind][m.rows]
    ours = of_rows[:, 0] - m.middle(of_rows)
    shuffled = clustered_error(ours - difference["shuffled tokens"][0], units)
    random: dict[str, Starts] = {
        name: starts_of(ours[:, None], list(difference[name][..., None]), units) for name in (RANDOM, OTHER)
    }
    listed = [f"shuffled tokens {plus_minus(*clustered_error(difference['shuffled tokens'][0], units)[:2])}"]
    listed += [f"{name} {plus_minus(control.mean[0], control.error[0])}" for name, control in random.items()]
    return Found(
        f"{found.measured}; in controls: {', '.join(listed)} (± over articles or {m.p.draws} networks)",
        found.holds and shuffled.above() and all(control.exceeds() for control in random.values()), found.value,
        found.error,
    )  # fmt: skip


def better(m: Results, kind: str) -> Found:
    """The variance of held-out parts that the formula and the exponential explain."""
    fit = m.fits[kind]
    (rate, time, _), (decay, _) = fit.formula, fit.exponential
    return Found(
        f"explained variance on other articles: formula {fit.explained[0]:.3f} (lambda = {rate:.2f}, at = {time:.3g}), "
        f"exponential {fit.explained[1]:.3f} (rate {decay:.2f}); gain "
        f"{plus_minus(fit.gain.mean, fit.gain.error, 3)} (± over {fit.gain.units} articles)",
        fit.gain.above() and fit.beyond_constant.above(), fit.gain.mean, fit.gain.error,
    )  # fmt: skip


last_gradient, last_patching = (
    claim(
        f"the difference is above zero {SURELY}",
        says=f"By {kind} the last part of a text moves the last token of {{m.called}} more than the middle.",
    )(lambda m, kind=kind: more(m, kind, -2, "last part"))
    for kind in KINDS
)
first_gradient, first_patching = (
    claim(
        f"the difference is above zero, and above that of each control, {SURELY}",
        says=f"By {kind} the first token moves the last token of {{m.called}} more than a token in the middle, beyond "
        "the controls.",
    )(lambda m, kind=kind: first_beyond(m, kind))
    for kind in KINDS
)
u_gradient, u_patching = (
    claim(
        f"the difference is above zero {SURELY}",
        says=f"By {kind} the first part of a text, without the first token, moves the last token of {{m.called}} more "
        "than the middle.",
    )(lambda m, kind=kind: more(m, kind, 1, "first part"))
    for kind in KINDS
)
formula_gradient, formula_patching = (
    claim(
        f"the gain of explained variance, and that over a constant, are above zero {SURELY}",
        says=f"By {kind} the formula of causal particles explains the influence of places on the last token of "
        "{m.called}, on articles to which it was not fitted, better than an exponential.",
    )(lambda m, kind=kind: better(m, kind))
    for kind in KINDS
)


@claim(f"less than {SAME:g}", kind="identity")
def replaced_by_itself(m: Results) -> Found:
    """A token that is replaced by itself changes no prediction."""
    return Found(f"largest divergence {m.off:.1e} nats", m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    begin = f"{ABSENT} " if m.own else ""
    last = ", ".join(f"by {kind} {plus_minus(*m.mean(m.network[kind][:, -1])[:2], 1)}" for kind in KINDS)
    return (
        f"{begin}The influence of each place on the last token of {m.called}, in texts of {m.n} tokens: the first "
        f"token, and {m.p.parts} parts of the places up to the last token, in units of their mean. (a) By gradient: "
        "the norm of the derivative of the last token's final state by the embedding. (b) By patching: the divergence "
        f"of the prediction with the embedding of another article's token, at random places ({m.p.sampled} of each "
        "part). Lines: the formula of causal particles and an exponential, fitted to the parts of half of the "
        f"articles, without the first token. Controls: tokens in random order, and {m.p.draws} networks of random "
        f"weights, of the spread before training and of spread {USUAL:g}, on {len(m.rows)} texts. The last token "
        f"itself: {last}. "
        f"Means over texts with standard errors over {articles_words(m.articles)}; of random weights over networks."
    )


def runs_of(m: Results, kind: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The mean influence and its error, of the network and of each control, (parts + 2,) each."""
    runs = {"network": m.mean(m.network[kind])[:2]}
    for name, control in m.controls.items():
        values = control[kind]
        mean = clustered_error(values[0], m.articles[m.rows]) if len(values) == 1 else clustered_error(values.mean(1))
        runs[name] = mean[:2]
    return runs


def series(m: Results) -> dict:
    table: dict[str, Any] = {"part": np.arange(m.p.parts + 2)}
    for kind in KINDS:
        for name, (mean, error) in runs_of(m, kind).items():
            table |= {f"{kind}, {name}": mean, f"{kind}, {name}, error": error}
    return table


def draw(m: Results) -> Figure:
    drawn = panels(m, [partial(_draw, kind=kind) for kind in KINDS], columns=2, height=3.6)
    one_legend(drawn, drawn.axes, loc="outside lower center", ncols=6, fontsize=6, handlelength=1.8)
    return drawn


def _draw(ax: Axes, m: Results, *, kind: str) -> None:
    places, fit = np.arange(1, m.n) / m.n, m.fits[kind]
    # The first token, and the middle of each part.
    at = np.concatenate([places[:1], by_part(places[1:], m.p.parts)])
    least = np.inf
    for shift, (name, (mean, error)) in enumerate(runs_of(m, kind).items()):
        colour, marker = LOOKS[name]
        ax.errorbar(at + 0.006 * shift, mean[:-1], error[:-1], fmt=marker, color=colour, ms=3.5, lw=0.8, label=name)
        least = min(least, float(mean[:-1].min()))
    lines = ((influence_of_place, fit.formula, "-", "formula"), (exponential, fit.exponential, "--", "exponential"))
    for curve, (*shape, scale), line, label in lines:
        colour = "0.3" if line == "-" else OKABE_ITO[5]
        ax.plot(places, scale * curve(places, *shape), line, color=colour, lw=0.9, label=label, zorder=0)
    # A steep curve would hide the profile, and is cut below the least of all means.
    ax.set(xlabel="place s = j / n", ylabel=f"influence by {kind} / mean", yscale="log", ylim=(0.5 * least, None))


def on(m: Results) -> Measured:
    size = {"texts": len(m.articles), "tokens": m.n, "layers": m.reading.model.num_layers, "seeds": m.p.draws}
    return Measured(OWN if m.own else SMOLLM2, m.reading.data, size)


FIGURE = figure(
    __name__,
    over=lambda m: articles_words(m.articles),
    recorded=lambda m: {
        "network": on(m).network.words, "texts": m.reading.data.words, "starts": len(m.articles),
        "control texts": len(m.rows), "solver": "none: layers in float32",
    },
)  # fmt: skip
