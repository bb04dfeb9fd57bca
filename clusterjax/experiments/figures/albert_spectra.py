"""The spectra of the heads of a trained network, as the theorems of Geshkovski et al. (2305.05465) need them.

V of a head is a d x d matrix of rank k, the size of the head, so that the k eigenvalues of V that may differ from zero
are the eigenvalues of a k x k product of its factors. A product of random (k, d) and (d, k) matrices with entries of
variances a and b has its eigenvalues in a disc of radius (a b k d)^(1/2) (Burda, Jarosz, Livan, Nowak and Swiech,
2010): eigenvalues outside come from training. The symmetric part of Q^T K has rank 2k at most, and by Sylvester's law
of inertia as many negative eigenvalues as positive ones if 2k <= d.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from ... import probe
from ..._base.checks import check_integer
from ..._observables import effective_beta
from ...plot import OKABE_ITO, style
from ..framework.figure import ANY, MOST_OF_NETWORK, Claim, Found, Say, Settings, Source, claim, figure, parameter
from ..shared.layout import WIDTH, drawable, letter
from ..shared.networks import Network, network_of
from ..shared.sources import ALBERT_XL


PAPER = Source("Geshkovski et al., 2305.05465, the spectra of ALBERT", ALBERT_XL, ANY)  # the weights depend on no texts
CHANCE = 0.05
COLOURS = tuple(OKABE_ITO[k] for k in (0, 5, 2, 3, 1, 4))
HATCHES = ("", "////", "....")
LINES = ("-", "--", ":")
COLUMNS = 4
LETTERS = 46  # the largest number of letters in the words at one end of a direction


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(99, "the number of random directions for each head", least=19, most=9999)
    layer: int = parameter(1, "the layer whose heads are shown", least=1, most=MOST_OF_NETWORK)
    top: int = parameter(5, "the number of words at each end of a direction", least=1, most=20)
    outside: float = parameter(1.25, "the least modulus outside of the disc, in its radii", least=1, most=100)


class Reading(NamedTuple):
    """The real eigenvector of the V of a head with the largest real eigenvalue, as words."""

    head: int  # the head, from 0
    eigenvalue: float  # the real eigenvalue
    overtaken: bool  # True if a pair of complex eigenvalues has a larger real part
    ends: tuple[list[str], list[str]]  # the words nearest to the eigenvector, and to its opposite
    cosine: float  # the largest cosine with a word, at either end
    drawn: np.ndarray  # the largest cosine for random directions that the head writes, (draws,)


class Results(NamedTuple):
    p: Parameters
    network: Network
    value: np.ndarray  # the eigenvalues of V, (heads, k), the largest real part first
    forms: np.ndarray  # the eigenvalues of the symmetric part of Q^T K, (heads, 2k or d), the largest first
    beta: np.ndarray  # the effective beta, (heads,)
    radius: np.ndarray  # the radius of the disc of the eigenvalues of random factors of the same norms, (heads,)
    untrained: float  # the effective beta of a head of random weights
    matrices: probe.HeadMatrices  # the factors of all heads; `block` is the index of the factors of the layer
    readings: tuple[Reading, ...]  # one for each head with a real eigenvalue; none if tokens have no names
    block: int = 0

    @property
    def d(self) -> int:
        """The hidden size."""
        return self.matrices.value.shape[2]

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue of largest modulus of each head, (heads,)."""
        return np.take_along_axis(self.value, np.abs(self.value).argmax(axis=1)[:, None], axis=1)[:, 0]

    @property
    def dominant(self) -> np.ndarray:
        """True if the leading eigenvalue is real, positive, and simple, (heads,)."""
        moduli = np.sort(np.abs(self.value), axis=1)
        simple = moduli[:, -1] > (1 + 1e-9) * moduli[:, -2] if moduli.shape[1] > 1 else np.ones(len(moduli), bool)
        return simple & is_real(self.leading, moduli[:, -1]) & (np.real(self.leading) > 0)

    @property
    def rightmost(self) -> np.ndarray:
        """True if the eigenvalue of largest real part is real and positive, (heads,)."""
        return is_real(self.value[:, 0], np.abs(self.leading)) & (np.real(self.value[:, 0]) > 0)

    def factors(self, head: int) -> tuple[np.ndarray, ...]:
        """The factors of the query, the key, the value and the output of a head of the layer."""
        return tuple(matrix[self.block, head] for matrix in self.matrices[:4])

    def form_along(self, head: int) -> float:
        """<Qv, Kv> for the eigenvector v of the leading eigenvalue of a head."""
        query, key, value, output = self.factors(head)
        small: Any = np.linalg.eig((output @ value).T)
        # `output` maps an eigenvector of the small product to an eigenvector of V in d dimensions.
        v = (small.eigenvectors[:, np.abs(small.eigenvalues).argmax()].T @ output).real
        return float((v @ query) @ (v @ key))

    def word_cosine(self) -> tuple[float, np.ndarray, float]:
        """The largest cosine of an eigenvector with a word, averaged over heads; the average for random directions,
        (draws,); and the probability that random directions have an average at least as large."""
        near = float(np.mean([reading.cosine for reading in self.readings]))
        drawn = np.mean([reading.drawn for reading in self.readings], axis=0)
        # The measured value counts as one of the draws, so that the probability is never 0.
        return near, drawn, (1 + int((drawn >= near).sum())) / (1 + len(drawn))


def is_real(eigenvalues: np.ndarray, scale: Any) -> np.ndarray:
    """True for eigenvalues that are real up to a rounding error relative to `scale`."""
    return np.abs(np.imag(eigenvalues)) <= 1e-9 * scale


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    network = network_of(settings)
    say(f"computing the spectra of {network.model.num_heads} heads")
    return spectra_of(network, settings.seed, p)


def spectra_of(network: Network, seed: int, p: Parameters = Parameters()) -> Results:
    """The spectra of one layer; the layers of an ALBERT usually share their weights."""
    spectra, matrices = probe.value_spectra(network.model), probe.head_matrices(network.model)
    block = network.model.network.order()[p.layer - 1]
    # The squared Frobenius norms of the factors estimate k d a and k d b.
    norms = np.linalg.norm(matrices.value[block], axis=(1, 2)) * np.linalg.norm(matrices.output[block], axis=(1, 2))
    # One generator serves all heads, in their order.
    rng = np.random.default_rng(seed)
    heads = range(network.model.num_heads)
    readings = [_read(p, network, head, block, matrices.output[block, head], rng) for head in heads]
    return Results(
        p, network, spectra.value[block], spectra.query_key[block], spectra.beta[block],
        norms / np.sqrt(np.prod(matrices.value.shape[2:])), untrained_beta(network.model), matrices,
        tuple(reading for reading in readings if reading is not None), block,
    )  # fmt: skip


def untrained_beta(model: probe.Model) -> float:
    """The root mean square of the effective beta of a head with random weights, drawn as `transformers` draws them.

    If the entries of Q and K have the standard deviations q and k, and heads have the size r, the mean square of √d
    times the Frobenius norm of the symmetric part of $QK^T$ is $q² k² r d² (d + 1) / 2$.
    """
    matrices, sizes = probe.head_matrices(model), model.network.sizes
    d, r = matrices.query.shape[2:]
    # T5 draws Q with the standard deviation (d r)^(-1/2) and K with d^(-1/2).
    deviation_product = 1 / (d * np.sqrt(r)) if sizes.spread is None else sizes.spread**2
    return float(matrices.scale * deviation_product * d * np.sqrt(r * (d + 1) / 2))


def _read(
    p: Parameters, network: Network, head: int, block: int, output: np.ndarray, rng: np.random.Generator
) -> Reading | None:
    if network.names is None and network.model.tokenizer is None:
        return None
    # `top` is the number of all directions, the largest real part first.
    directions = probe.value_directions(network.model, head, block=block, top=len(output))
    real = np.flatnonzero(is_real(directions.eigenvalues, np.abs(directions.eigenvalues).max()))
    if not len(real):
        return None
    vector = np.real(directions.vectors[real[0]])
    # The opposite of an eigenvector is an eigenvector too.
    ends, cosines = _nearest(network, p.top, np.stack([vector, -vector]))
    # Random combinations of the rows of `output` are directions that the head can write.
    drawn = rng.normal(size=(p.draws, len(output))) @ output
    drawn_cosines = _nearest(network, p.top, np.concatenate([drawn, -drawn]))[1].reshape(2, p.draws).max(axis=0)
    eigenvalue = float(np.real(directions.eigenvalues[real[0]]))
    return Reading(head, eigenvalue, bool(real[0] > 0), (ends[0], ends[1]), float(cosines.max()), drawn_cosines)


def _nearest(network: Network, top: int, vectors: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
    """The words nearest to each vector, and the largest cosine; ids without a name are left out."""
    names = network.names
    if names is None:
        near = probe.nearest_words(network.model, vectors, top=top)
        assert near.words is not None
        return near.words, near.cosines[:, 0]
    near = probe.nearest_words(network.model, vectors, top=network.model.network.sizes.vocab_size)
    named = np.isin(near.token_ids, list(names))
    rows = [ids[known][:top] for ids, known in zip(near.token_ids, named, strict=True)]
    return [[names[int(i)] for i in row] for row in rows], np.where(named, near.cosines, -np.inf).max(axis=1)


@claim("the eigenvalue of largest modulus is so at one head or more", source=PAPER)
def leading(m: Results) -> Found:
    """At one head or more V has a leading eigenvalue that is real, simple and positive, as the theorem on three
    hyperplanes requires."""
    agree = np.array([bool(yes) and m.form_along(head) > 0 for head, yes in enumerate(m.dominant)])
    return Found(
        f"the eigenvalue of largest modulus is so at {_listed(m.dominant)} of {len(agree)} heads, and its eigenvector "
        f"has <Qv, Kv> > 0, which the theorem also asks, at {_listed(agree)}; the eigenvalue of largest real part is "
        f"real and positive at {_listed(m.rightmost)}",
        m.dominant.any(), m.dominant.sum(),
    )  # fmt: skip


def _listed(which: np.ndarray) -> str:
    heads = [int(head) + 1 for head in np.flatnonzero(which)]
    return f"{len(heads)} {heads}" if heads else "none"


@claim("at every head", source=PAPER)
def forms(m: Results) -> Found:
    """At every head the symmetric part of Q^T K is positive definite, as the theorem on V = I requires."""
    forms, k = m.forms, m.matrices.query.shape[3]
    share = 100 * (np.minimum(forms, 0.0) ** 2).sum(axis=1) / (forms**2).sum(axis=1)
    ratio = -forms[:, -1] / forms[:, 0]
    # A form of rank 2k < d has eigenvalues of zero and is not definite.
    definite = (forms[:, -1] > 0) & (2 * k >= m.d)
    why = f", because its rank is {2 * k} at most and would have to be {m.d}" if 2 * k < m.d else ""
    return Found(
        f"at {int(definite.sum())} of {len(forms)} heads{why}; its negative part has {share.min():.0f} to "
        f"{share.max():.0f} % of the squared norm, and the lowest eigenvalue is {ratio.min():.2f} to {ratio.max():.2f} "
        "times as far from zero as the highest",
        definite.all(), share.max(),
    )  # fmt: skip


@claim("the largest modulus is above {p.outside:g} times the radius of the disc at half of the heads or more")
def discs(m: Results) -> Found:
    """At half of the heads or more V has an eigenvalue outside the disc of the eigenvalues of random matrices whose
    factors have the same norms."""
    ratio = np.abs(m.leading) / m.radius
    return Found(
        f"the largest modulus is {ratio.min():.2f} to {ratio.max():.2f} times the radius of the disc of random "
        f"matrices, {ratio.mean():.2f} in the mean",
        np.mean(ratio > m.p.outside) >= 0.5, ratio.mean(),
    )  # fmt: skip


@claim("the smallest effective beta is above 1.1 times that of random weights")
def betas(m: Results) -> Found:
    """The effective beta of every head is above that of random weights."""
    low, high = m.beta.min(), m.beta.max()
    return Found(
        f"effective beta {low:.3g} to {high:.3g}; of random weights, drawn as before training, {m.untrained:.3g}",
        low > 1.1 * m.untrained, low,
    )  # fmt: skip


@claim(f"the probability is below {CHANCE:g}")
def words(m: Results) -> Found | None:
    """The top real eigenvectors of V lie nearer to single words than random directions that the heads can write."""
    if not m.readings:
        return None
    near, drawn, chance = m.word_cosine()
    return Found(
        f"largest cosine with a word, the mean over heads: {near:.3f}; for random directions {drawn.mean():.3f} ± "
        f"{drawn.std(ddof=1):.3f} (spread); a random direction has as large a cosine with probability {chance:.2f}",
        chance < CHANCE, near,
    )  # fmt: skip


@claim("less than 1e-6", kind="identity")
def whole_spectrum(m: Results) -> Found:
    """At the head of the largest eigenvalue the product of the factors has the non-zero eigenvalues of all of V, {m.d}
    x {m.d}."""
    # One head is enough: the spectrum of the whole operator takes d^3 operations.
    head = int(np.abs(m.leading).argmax())
    _, _, value, output = m.factors(head)
    small, spectrum = m.value[head], np.linalg.eigvals((value @ output).T)
    others = len(spectrum) - len(small)
    far = np.abs(small[:, None] - spectrum[None, :]).min(axis=1).max()
    off = float(max(far, np.sort(np.abs(spectrum))[:others].max(initial=0.0)) / np.abs(small).max())
    return Found(
        f"head {head + 1}: largest distance {off:.1e} of the largest modulus, between an eigenvalue of the small "
        f"product and the nearest one of V, or between the other {others} eigenvalues of V and zero",
        off < 1e-6, off,
    )  # fmt: skip


@claim("less than 1e-9", kind="identity")
def whole_form(m: Results) -> Found:
    """The effective beta of the head of the largest eigenvalue equals that of the whole matrix Q^T K."""
    head = int(np.abs(m.leading).argmax())
    query, key, _, _ = m.factors(head)
    expected = effective_beta(m.matrices.scale * query @ key.T)
    error = abs(float(m.beta[head]) - expected) / expected
    return Found(f"head {head + 1}: relative difference {error:.1e}", error < 1e-9, error)


@claim("half of the eigenvalues are negative at every head", kind="identity")
def inertia(m: Results) -> Found | None:
    """The symmetric part of Q^T K has as many negative as positive eigenvalues, by Sylvester's law of inertia."""
    k, moduli = m.matrices.query.shape[3], np.abs(m.forms)
    # An eigenvalue of zero has no sign: tied or pruned heads, which have such eigenvalues, are left out.
    full = (moduli > 1e-9 * moduli.max(axis=1, keepdims=True)).all(axis=1)
    if 2 * k > m.d or not full.any():
        return None
    negative = (m.forms[full] < 0).sum(axis=1)
    return Found(
        f"{negative.min()} to {negative.max()} of {2 * k} eigenvalues are negative at each of {len(negative)} heads",
        (negative == k).all(), negative.max(),
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    blocks = m.matrices.value.shape[0]
    text = (
        "The heads of "
        f"{m.network.words}{f', in layer {m.p.layer} of {blocks} with weights of their own' if blocks > 1 else ''}. "
        f"(a) The {m.value.shape[1]} eigenvalues of V of each head that may differ from zero; those of largest modulus "
        "are filled. Dashed: the disc of the eigenvalues of random matrices with the norms of the two factors of V. "
        "(b) The eigenvalues of the symmetric part of Q^T K, with its scale, that may differ from zero, in decreasing "
        "order and in the colours of (c). (c) The effective beta, √d times the Frobenius norm of the symmetric part "
        f"(beta if that part is beta I / d); dashed: the effective beta of random weights, {m.untrained:.3g}."
    )
    if not m.readings:
        return text
    overtaken = [reading.head + 1 for reading in m.readings if reading.overtaken]
    star = f"; * at heads {overtaken} a pair of complex eigenvalues has a larger real part" if overtaken else ""
    return text + (
        f" (d) The {m.p.top} symbols of the vocabulary nearest to the eigenvector of V with the largest real "
        f"eigenvalue, and to its opposite, which is an eigenvector too, as many as there is room for{star}."
    )


def series(m: Results) -> dict:
    return {
        "rank": np.arange(1, m.forms.shape[1] + 1), "query_key": m.forms.mean(axis=0), "query_key_by_head": m.forms,
        "real_by_head": np.real(m.value), "imaginary_by_head": np.imag(m.value), "beta_by_head": m.beta,
        "disc_by_head": m.radius,
    }  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    heads = len(m.value)
    # At least two rows of planes for many heads, and at most `COLUMNS` columns.
    columns = min(COLUMNS, max(2, -(-heads // 2)), heads)
    rows = -(-heads // columns)
    high = max(0.5 + 1.0 * rows, 2.9)
    low = 0.36 + 0.135 * len(m.readings) if m.readings else 0.0
    shown = Figure(figsize=(WIDTH, high + low), layout="constrained")
    above, below = shown.subfigures(2, 1, height_ratios=(high, low)) if m.readings else (shown, None)  # pyright: ignore
    left, right = above.subfigures(1, 2, width_ratios=(1.5, 1.0))  # pyright: ignore
    grid = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    _planes(grid, m.value, m.radius)
    left.supxlabel("Re λ", fontsize=8)
    left.supylabel("Im λ", fontsize=8)
    ordered, bars = right.subplots(2, 1)
    _forms(ordered, m.forms)
    _bars(bars, m.beta, m.untrained)
    letter((grid[0, 0], ordered, bars))
    if below is not None:
        table = below.subplots()
        _table(table, m.readings)
        table.text(0.0, 0.98, "(d)", ha="left", va="bottom", transform=table.transAxes, weight="bold")
    return shown


def _planes(grid: Any, value: np.ndarray, radius: np.ndarray) -> None:
    reach = 1.08 * max(float(np.abs(np.real(value)).max()), float(np.abs(np.imag(value)).max()), float(radius.max()))
    # Round ticks within the axes: a digit times a power of ten.
    unit = 10.0 ** np.floor(np.log10(0.8 * reach))
    tick = float(unit * np.floor(0.8 * reach / unit))
    for ax in grid.flat[len(value) :]:
        ax.set_visible(False)
    for head, ax in enumerate(grid.flat[: len(value)]):
        ax.axhline(0, color="0.6", lw=0.5, zorder=0)
        ax.axvline(0, color="0.6", lw=0.5, zorder=0)
        ax.add_patch(Circle((0, 0), radius[head], fill=False, ec="0.35", lw=0.7, ls="--", zorder=1))
        ax.scatter(np.real(value[head]), np.imag(value[head]), s=5, facecolors="none", edgecolors=OKABE_ITO[0],
                   linewidths=0.5)  # fmt: skip
        # The eigenvalue of largest modulus has a conjugate of the same modulus, or is real.
        top = value[head][np.abs(value[head]) > (1 - 1e-9) * np.abs(value[head]).max()]
        ax.scatter(np.real(top), np.imag(top), s=11, color=OKABE_ITO[5], linewidths=0, zorder=4)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_title(f"head {head + 1}", pad=2, fontsize=7)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks([-tick, 0.0, tick], [_number(at, "g") for at in (-tick, 0.0, tick)])
        ax.tick_params(length=2, labelsize=6)


def _number(value: float, spec: str) -> str:
    return f"{value:{spec}}".replace("-", "\N{MINUS SIGN}")


def _forms(ax: Axes, forms: np.ndarray) -> None:
    for head, row in enumerate(forms):
        line = LINES[head // len(COLOURS) % len(LINES)]
        ax.plot(np.arange(1, forms.shape[1] + 1), row, lw=0.9, color=COLOURS[head % len(COLOURS)], linestyle=line)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="rank", ylabel="eigenvalue", title="symmetric part of Q$^T$K")


def _bars(ax: Axes, beta: np.ndarray, untrained: float) -> None:
    heads = np.arange(1, len(beta) + 1)
    for head, height in enumerate(beta):
        hatch = HATCHES[head // len(COLOURS) % len(HATCHES)]
        ax.bar(head + 1, height, color=COLOURS[head % len(COLOURS)], hatch=hatch, edgecolor="white", lw=0)
    ax.axhline(untrained, color="0.1", lw=0.9, ls="--")
    ax.set(xlabel="head", ylabel="effective β", xticks=heads if len(heads) <= 12 else heads[::2])


def _table(ax: Axes, readings: Sequence[Reading]) -> None:
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(readings) + 0.1, -1.1))
    columns = ((0.045, "head"), (0.09, "λ"), (0.15, "words towards v"), (0.58, "words towards −v"))
    for x, name in columns:
        ax.text(x, -0.5, name, va="center", weight="bold", fontsize=6.5)
    ax.axhline(0.0, color="0.3", lw=0.5)
    for row, reading in enumerate(readings):
        number = _number(reading.eigenvalue, ".2f") + ("*" if reading.overtaken else "")
        cells = (str(reading.head + 1), number, *(listed(end) for end in reading.ends))
        for (x, _), cell in zip(columns, cells, strict=True):
            ax.text(x, row + 0.5, cell, va="center", fontsize=6.5)


def listed(words: Sequence[str]) -> str:
    """The words in one line, as many as fit into `LETTERS` letters, but one at least."""
    shown = [drawable(word) for word in words]
    while len(shown) > 1 and len("  ".join(shown)) > LETTERS:
        shown = shown[:-1]
    return "  ".join(shown)


def check(settings: Settings) -> None:
    layers = network_of(settings).model.num_layers
    check_integer(settings.read(Parameters).layer, "layer", least=1, most=layers, remedy="name one of the network")


FIGURE = figure(
    __name__,
    over=None,
    on=lambda m: m.network.measured(),
    recorded=lambda m: {
        "network": m.network.words, "heads": len(m.value), "size of a head": m.value.shape[1], "hidden size": m.d,
        "beta before training": m.untrained, "starts": 1, "solver": "none: weights in float64",
    },
)  # fmt: skip
