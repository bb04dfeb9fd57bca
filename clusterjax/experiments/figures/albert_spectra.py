"""The spectra of a network's heads, what random weights would have, and the words of the eigenvectors of V.

V = value output is d x d of rank k, the size of a head: its k eigenvalues that need not be zero are those of the small
product, k x k. A product of random (k, d) and (d, k) matrices whose entries have variances a and b fills a disc of
radius (a b k d)^(1/2) (Burda, Jarosz, Livan, Nowak, Swiech, 2010); eigenvalues beyond it were made by training. The
symmetric part of Q^T K has rank 2k at most, and by Sylvester's law as many negative eigenvalues as positive ones where
2k <= d.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from ... import probe
from ..._base.checks import check_integer
from ..._observables import effective_beta
from ...plot import OKABE_ITO, style
from ..framework.experiment import MOST_OF_NETWORK, Claim, Outcome, Settings, parameter
from ..framework.figure import declared
from ..framework.verdict import ANY, Source
from ..shared.layout import WIDTH, drawable
from ..shared.networks import Network, network_of
from ..shared.sources import ALBERT_XL


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(99, "the number of random directions for each head", least=19, most=9999)
    layer: int = parameter(1, "the layer whose heads are looked at", least=1, most=MOST_OF_NETWORK)
    top: int = parameter(5, "the number of words at each end of a direction", least=1, most=20)
    outside: float = parameter(
        1.25, "how many times the radius of the disc an eigenvalue counts as outside from", least=1, most=100
    )


@dataclass(frozen=True, eq=False)
class Reading:
    """The real eigenvector of a head's V with the largest real eigenvalue, as words.

    **Attributes:**

    - `head`: From 0.
    - `eigenvalue`: The real one.
    - `beaten`: Whether a pair of complex ones has a larger real part.
    - `ends`: The words nearest to the eigenvector, and to its opposite.
    - `cosine`: The largest cosine with a word, at either end.
    - `drawn`: The same for random directions that the head writes, (draws,).
    """

    head: int
    eigenvalue: float
    beaten: bool
    ends: tuple[list[str], list[str]]
    cosine: float
    drawn: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows: what is read from the weights of one layer.

    **Attributes:**

    - `value`: The eigenvalues of V, (heads, k), the largest real part first.
    - `forms`: Those of the symmetric part of Q^T K, (heads, 2k or d), the largest first.
    - `beta`: The effective beta, (heads,).
    - `radius`: Of the disc that the eigenvalues of random factors of the same norms fill, (heads,).
    - `untrained`: The effective beta of a head of random weights, as before training.
    - `matrices`: The factors of all heads.
    - `readings`: By head; none where no eigenvalue is real, or symbols have no names.
    - `block`: Which of these factors are those of the layer.
    """

    p: Parameters
    value: np.ndarray
    forms: np.ndarray
    beta: np.ndarray
    radius: np.ndarray
    untrained: float
    matrices: probe.HeadMatrices
    readings: tuple[Reading, ...]
    block: int = 0

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue of largest modulus of each head, (heads,)."""
        return np.take_along_axis(self.value, np.abs(self.value).argmax(axis=1)[:, None], axis=1)[:, 0]

    @property
    def dominant(self) -> np.ndarray:
        """Whether it is real, positive, and of larger modulus than all others, (heads,)."""
        # Simple: the largest modulus surely exceeds the second.
        size = np.sort(np.abs(self.value), axis=1)
        apart = size[:, -1] > (1 + 1e-9) * size[:, -2] if size.shape[1] > 1 else np.ones(len(size), bool)
        return apart & real(self.leading, size[:, -1]) & (np.real(self.leading) > 0)

    @property
    def rightmost(self) -> np.ndarray:
        """Whether that of largest real part is real and positive, (heads,)."""
        return real(self.value[:, 0], np.abs(self.leading)) & (np.real(self.value[:, 0]) > 0)

    def form_along(self, head: int) -> float:
        """<Qv, Kv>, v the eigenvector of the leading eigenvalue."""
        query, to, value, output = (one[self.block, head] for one in self.matrices[:4])
        # V = (value output)^T in rows has rank k; its eigenvectors are those of the small product, taken to d
        # dimensions.
        small: Any = np.linalg.eig((output @ value).T)
        # The eigenvector of the small product, taken through `output` to d dimensions.
        v = (small.eigenvectors[:, np.abs(small.eigenvalues).argmax()].T @ output).real
        return float((v @ query) @ (v @ to))


def real(eigenvalues: np.ndarray, size: Any) -> np.ndarray:
    """Whether they are real, up to rounding relative to `size`."""
    return np.abs(np.imag(eigenvalues)) <= 1e-9 * size


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """The spectra of a network."""
    say(f"taking the spectra of {network.model.num_heads} heads")
    return spectra_of(network, settings.seed, p)


def spectra_of(network: Network, seed: int, p: Parameters = Parameters()) -> Results:
    """The spectra of one layer, the first if `p` does not say; the layers of an ALBERT usually share their weights.

    The disc: the largest modulus of the eigenvalues of a product of random (k, d) and (d, k)
    matrices with entries of variances a and b comes to the root of a b k d (Burda, Jarosz, Livan, Nowak and Swiech,
    2010).
    """
    spectra, matrices = probe.value_spectra(network.model), probe.head_matrices(network.model)
    block = network.model.network.order()[p.layer - 1]
    # Frobenius norms: k d a and k d b are their squares.
    norms = np.linalg.norm(matrices.value[block], axis=(1, 2)) * np.linalg.norm(matrices.output[block], axis=(1, 2))
    # One generator for all heads, in their order.
    rng = np.random.default_rng(seed)
    heads = range(network.model.num_heads)
    readings = [_read(p, network, head, block, matrices.output[block, head], rng) for head in heads]
    return Results(
        p,
        spectra.value[block],
        spectra.query_key[block],
        spectra.beta[block],
        norms / np.sqrt(np.prod(matrices.value.shape[2:])),
        untrained_beta(network.model),
        matrices,
        tuple(reading for reading in readings if reading is not None),
        block,
    )


def untrained_beta(model: probe.Model) -> float:
    r"""The root mean square of the effective beta of a head with random weights, as before training.

    With entries of Q and K of the standard deviations $q$ and $k$, and r of them to a token, $\sqrt d$ times the
    Frobenius norm of the symmetric part of $QK^\top$ has the mean square $q^2 k^2 r d^2 (d + 1) / 2$.

    The deviations are those of `transformers`.
    """
    matrices, sizes = probe.head_matrices(model), model.network.sizes
    d, r = matrices.query.shape[2:]
    # T5 draws the weights of Q with (d r)^(-1/2) and those of K with d^(-1/2), others both with one standard deviation.
    both = 1 / (d * np.sqrt(r)) if isinstance(sizes, probe.T5Sizes) else sizes.spread**2
    return float(matrices.scale * both * d * np.sqrt(r * (d + 1) / 2))


def _read(
    p: Parameters, network: Network, head: int, block: int, output: np.ndarray, rng: np.random.Generator
) -> Reading | None:
    if network.names is None and network.model.tokenizer is None:
        return None
    # All of them, the largest real part first.
    directions = probe.value_directions(network.model, head, block=block, top=len(output))
    real_ones = np.flatnonzero(real(directions.eigenvalues, np.abs(directions.eigenvalues).max()))
    if not len(real_ones):
        return None
    vector = np.real(directions.vectors[real_ones[0]])
    # An eigenvector and its opposite are the same eigenvector.
    ends, cosines = _nearest(network, p.top, np.stack([vector, -vector]))
    # Random combinations of the rows of `output`: directions that the head can write.
    drawn = rng.normal(size=(p.draws, len(output))) @ output
    return Reading(
        head,
        float(np.real(directions.eigenvalues[real_ones[0]])),
        bool(real_ones[0] > 0),
        (ends[0], ends[1]),
        float(cosines.max()),
        # Both ends here too, and the larger cosine of the two.
        _nearest(network, p.top, np.concatenate([drawn, -drawn]))[1].reshape(2, p.draws).max(axis=0),
    )


def _nearest(network: Network, top: int, vectors: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
    """The words nearest to each vector, and the cosine of the nearest; ids without a name are passed over."""
    names = network.names
    if names is None:
        near = probe.nearest_words(network.model, vectors, top=top)
        assert near.words is not None
        return near.words, near.cosines[:, 0]
    # All words, as ids without a name are passed over below.
    near = probe.nearest_words(network.model, vectors, top=network.model.network.sizes.vocab_size)
    named = np.isin(near.token_ids, list(names))
    rows = [ids[known][:top] for ids, known in zip(near.token_ids, named, strict=True)]
    return [[names[int(i)] for i in row] for row in rows], np.where(named, near.cosines, -np.inf).max(axis=1)


# What is claimed of the spectra of a network's heads: what theorems ask of V and Q^T K, and what training gave.


PAPER = Source("Geshkovski et al., 2305.05465, the spectra of ALBERT", ALBERT_XL, ANY)  # weights read no texts
CHANCE = 0.05


def caption_of(network: Network, m: Results) -> str:
    """What is seen of the spectra."""
    value, beta, readings = m.value, m.beta, m.readings
    blocks = m.matrices.value.shape[0]
    outside = int((np.abs(m.leading) > m.p.outside * m.radius).sum())
    beaten = [reading.head + 1 for reading in readings if reading.beaten]
    text = (
        f"The heads of {network.words}"
        + (f": those of layer {m.p.layer}, of {blocks} with weights of their own" if blocks > 1 else "")
        + f". (a) The eigenvalues of V for each head, those {value.shape[1]} that need not be zero, that of largest "
        f"modulus filled; {100 * np.mean(np.real(value) > 0):.0f} % have a positive real part. Dashed: the disc that "
        "random matrices with the norms of the two factors of V fill; the largest modulus exceeds its radius "
        f"{m.p.outside:g} times at {outside} of {len(value)} heads. (b) The eigenvalues of the symmetric part of Q^T "
        "K, its scale included, in decreasing order, those that need not be zero; the colours are those of (c). (c) "
        "Effective beta, √d times the Frobenius norm of that part (it is beta if that is beta I / d), from "
        f"{beta.min():.3g} to {beta.max():.3g}; dashed: that of random weights, {m.untrained:.3g}."
    )
    if not readings:
        return text
    near, drawn, chance = _word_cosine(m)
    return text + (
        f" (d) The {m.p.top} symbols of the vocabulary nearest to the eigenvector of V with the largest real "
        "eigenvalue, and to its opposite, which an eigenvector does not tell apart; so many as there is room for"
        + (f"; * at heads {beaten} a pair of complex eigenvalues has a larger real part" if beaten else "")
        + f". Their largest cosine is {near:.2f} in the mean, {drawn.mean():.2f} for random directions that the heads "
        + ("write." if chance < CHANCE else f"write: the words may be chance (probability {chance:.2f}).")
    )


def claims_of(m: Results) -> tuple[Claim, ...]:
    """What the theory asks of the heads, what is found, and what must hold."""
    return (
        _claim_of_leading(m),
        _claim_of_forms(m),
        _claim_of_discs(m),
        _claim_of_beta(m),
        *_claim_of_words(m),
        *_identities(m),
    )


def _claim_of_leading(m: Results) -> Claim:
    agree = np.array([bool(yes) and m.form_along(head) > 0 for head, yes in enumerate(m.dominant)])
    return Claim(
        says="V has a leading eigenvalue that is real, simple and positive, as the theorem on three hyperplanes asks.",
        measured=f"the eigenvalue of largest modulus is so at {_listed(m.dominant)} of {len(agree)} heads, and "
        f"there <Qv, Kv> > 0, which is asked of its eigenvector as well, at {_listed(agree)}; that of largest real "
        f"part is real and positive at {_listed(m.rightmost)}",
        criterion="of largest modulus: at one head or more",
        holds=bool(m.dominant.any()),
        kind="paper",
        value=float(m.dominant.sum()),
        source=PAPER,
    )


def _listed(which: np.ndarray) -> str:
    heads = [int(head) + 1 for head in np.flatnonzero(which)]
    return f"{len(heads)} {heads}" if heads else "none"


def _claim_of_forms(m: Results) -> Claim:
    forms = m.forms
    d, k = m.matrices.query.shape[2:]
    # The part of the squared norm that negative eigenvalues have.
    share = 100 * (np.minimum(forms, 0.0) ** 2).sum(axis=1) / (forms**2).sum(axis=1)
    ratio = -forms[:, -1] / forms[:, 0]
    # Of rank 2k below d a form has zeros, and is not definite.
    definite = (forms[:, -1] > 0) & (2 * k >= d)
    why = f", its rank being {2 * k} at most where {d} would be needed" if 2 * k < d else ""
    return Claim(
        says="The symmetric part of Q^T K is positive definite, as the theorem on V = I asks.",
        measured=f"at {int(definite.sum())} of {len(forms)} heads{why}; its negative part has {share.min():.0f} to "
        f"{share.max():.0f} % of the squared norm, and the lowest eigenvalue is {ratio.min():.2f} to {ratio.max():.2f} "
        "times as far from zero as the highest",
        criterion="at every head",
        holds=bool(definite.all()),
        kind="paper",
        value=float(share.max()),
        source=PAPER,
    )


def _claim_of_discs(m: Results) -> Claim:
    ratio = np.abs(m.leading) / m.radius
    return Claim(
        says="At half of the heads or more V has an eigenvalue that random matrices of the same norms do not have.",
        measured=f"the largest modulus is {ratio.min():.2f} to {ratio.max():.2f} times the radius of their disc, "
        f"{ratio.mean():.2f} in the mean",
        criterion=f"above {m.p.outside:g} at half of the heads or more",
        holds=bool(np.mean(ratio > m.p.outside) >= 0.5),
        kind="finding",
        value=float(ratio.mean()),
    )


def _claim_of_beta(m: Results) -> Claim:
    beta = m.beta
    return Claim(
        says="The effective beta of every head is above that of random weights.",
        measured=f"effective beta {beta.min():.3g} to {beta.max():.3g}; of random weights, as they are drawn before "
        f"training, {m.untrained:.3g}",
        criterion="the smallest is above 1.1 times that of random weights",
        holds=bool(beta.min() > 1.1 * m.untrained),
        kind="finding",
        value=float(beta.min()),
    )


def _claim_of_words(m: Results) -> tuple[Claim, ...]:
    if not m.readings:
        return ()
    near, drawn, chance = _word_cosine(m)
    return (
        Claim(
            says="The top eigenvectors of V lie nearer to single words than other directions that the heads write.",
            measured=f"largest cosine with a word, the mean over heads: {near:.3f}; for random directions "
            f"{drawn.mean():.3f} ± {drawn.std(ddof=1):.3f} (spread), and as large with probability {chance:.2f}",
            criterion=f"probability below {CHANCE:g}",
            holds=chance < CHANCE,
            kind="finding",
            value=near,
        ),
    )


def _word_cosine(m: Results) -> tuple[float, np.ndarray, float]:
    """The largest cosine of an eigenvector with a word, the mean over heads; the same of random directions; and how
    probably one of these has as large a one."""
    near = float(np.mean([reading.cosine for reading in m.readings]))
    drawn = np.mean([reading.drawn for reading in m.readings], axis=0)
    # The measured value counts among the drawn ones, so that the probability is never 0.
    return near, drawn, (1 + int((drawn >= near).sum())) / (1 + len(drawn))


def _identities(m: Results) -> tuple[Claim, ...]:
    # One head, that of the largest eigenvalue: the whole operator takes d^3 operations.
    head = int(np.abs(m.leading).argmax())
    query, to, value, output = (one[m.block, head] for one in m.matrices[:4])
    small, spectrum = m.value[head], np.linalg.eigvals((value @ output).T)
    others = len(spectrum) - len(small)
    # Each small eigenvalue has one of the whole beside it, and the others are zero.
    far = np.abs(small[:, None] - spectrum[None, :]).min(axis=1).max()
    off = float(max(far, np.sort(np.abs(spectrum))[:others].max(initial=0.0)) / np.abs(small).max())
    expected = effective_beta(m.matrices.scale * query @ to.T)
    error = abs(float(m.beta[head]) - expected) / expected
    return (
        Claim(
            says=f"The small product has the spectrum of the whole operator V, {len(spectrum)} x {len(spectrum)}.",
            measured=f"head {head + 1}: largest difference {off:.1e} of the largest modulus, from the nearest "
            f"eigenvalue, or of the other {others} from zero",
            criterion="less than 1e-6",
            holds=off < 1e-6,
            kind="identity",
            value=off,
        ),
        Claim(
            says="Effective beta is that of the whole Q^T K.",
            measured=f"head {head + 1}: relative difference {error:.1e}",
            criterion="less than 1e-9",
            holds=error < 1e-9,
            kind="identity",
            value=error,
        ),
        *_inertia(m),
    )


def _inertia(m: Results) -> tuple[Claim, ...]:
    k = m.matrices.query.shape[3]
    size = np.abs(m.forms)
    # An eigenvalue of zero has no sign: heads that are tied or pruned are left out.
    full = (size > 1e-9 * size.max(axis=1, keepdims=True)).all(axis=1)  # neither tied nor pruned
    if 2 * k > m.matrices.query.shape[2] or not full.any():
        return ()
    negative = (m.forms[full] < 0).sum(axis=1)
    return (
        Claim(
            says="The symmetric part of Q^T K has as many negative eigenvalues as positive ones, as independent "
            "factors have by Sylvester's law of inertia.",
            measured=f"{negative.min()} to {negative.max()} of {2 * k} are negative at each of {len(negative)} heads",
            criterion=f"{k}, the size of a head",
            holds=bool((negative == k).all()),
            kind="identity",
            value=float(negative.max()),
        ),
    )


# The panels of a network's spectra: a complex plane for each head, Q^T K and beta of all, and a list of words.


COLOURS = tuple(OKABE_ITO[k] for k in (0, 5, 2, 3, 1, 4))
HATCHES = ("", "////", "....")
LINES = ("-", "--", ":")
COLUMNS = 4
LETTERS = 46  # of the words at one end


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    heads, readings = len(m.value), m.readings
    # At least two rows of planes for many heads, as few columns as are needed.
    columns = min(COLUMNS, max(2, -(-heads // 2)), heads)
    rows = -(-heads // columns)
    high = max(0.5 + 1.0 * rows, 2.9)
    low = 0.36 + 0.135 * len(readings) if readings else 0.0
    figure = Figure(figsize=(WIDTH, high + low), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(high, low)) if readings else (figure, None)  # pyright: ignore
    left, right = above.subfigures(1, 2, width_ratios=(1.5, 1.0))  # pyright: ignore
    grid = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    _planes(grid, m.value, m.radius)
    left.supxlabel("Re λ", fontsize=8)
    left.supylabel("Im λ", fontsize=8)
    ordered, bars = right.subplots(2, 1)
    _forms(ordered, m.forms)
    _bars(bars, m.beta, m.untrained)
    lettered = [grid[0, 0], ordered, bars]
    if below is not None:
        lettered.append(below.subplots())
        _words(lettered[-1], readings)
    for letter, ax in zip("abcd", lettered, strict=False):
        place = (0.0, 0.98) if letter == "d" else (-0.05, 1.03)
        ax.text(*place, f"({letter})", ha="left" if letter == "d" else "right", va="bottom", transform=ax.transAxes,
                weight="bold")  # fmt: skip
    return figure


def _style_of(head: int) -> dict[str, Any]:
    return {"color": COLOURS[head % len(COLOURS)], "linestyle": LINES[head // len(COLOURS) % len(LINES)]}


def _planes(grid: Any, value: np.ndarray, radius: np.ndarray) -> None:
    reach = 1.08 * max(float(np.abs(np.real(value)).max()), float(np.abs(np.imag(value)).max()), float(radius.max()))
    # Round ticks within the axes: a digit times a power of ten.
    unit = 10.0 ** np.floor(np.log10(0.8 * reach))
    tick = float(unit * np.floor(0.8 * reach / unit))
    for head, ax in enumerate(grid.flat):
        if head >= len(value):
            ax.set_visible(False)
            continue
        ax.axhline(0, color="0.6", lw=0.5, zorder=0)
        ax.axvline(0, color="0.6", lw=0.5, zorder=0)
        ax.add_patch(Circle((0, 0), radius[head], fill=False, ec="0.35", lw=0.7, ls="--", zorder=1))
        colour = OKABE_ITO[0]
        ax.scatter(
            np.real(value[head]), np.imag(value[head]), s=5, facecolors="none", edgecolors=colour, linewidths=0.5
        )
        # The largest modulus, and its conjugate.
        top = value[head][np.abs(value[head]) > (1 - 1e-9) * np.abs(value[head]).max()]
        ax.scatter(np.real(top), np.imag(top), s=11, color=OKABE_ITO[5], linewidths=0, zorder=4)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_title(f"head {head + 1}", pad=2, fontsize=7)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks([-tick, 0.0, tick], [f"{at:g}".replace("-", "\N{MINUS SIGN}") for at in (-tick, 0, tick)])
        ax.tick_params(length=2, labelsize=6)


def _forms(ax: Axes, forms: np.ndarray) -> None:
    ranks = np.arange(1, forms.shape[1] + 1)
    for head, row in enumerate(forms):
        ax.plot(ranks, row, lw=0.9, **_style_of(head))
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="rank", ylabel="eigenvalue", title="symmetric part of Q$^T$K")


def _bars(ax: Axes, beta: np.ndarray, drawn: float) -> None:
    heads = np.arange(1, len(beta) + 1)
    for head, size in enumerate(beta):
        hatch = HATCHES[head // len(COLOURS) % len(HATCHES)]
        ax.bar(head + 1, size, color=COLOURS[head % len(COLOURS)], hatch=hatch, edgecolor="white", lw=0)
    ax.axhline(drawn, color="0.1", lw=0.9, ls="--")
    ax.set(xlabel="head", ylabel="effective β", xticks=heads if len(heads) <= 12 else heads[::2])


def _words(ax: Axes, readings: Sequence[Reading]) -> None:
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(readings) + 0.1, -1.1))
    columns = ((0.045, "head"), (0.09, "λ"), (0.15, "words towards v"), (0.58, "words towards −v"))
    for place, name in columns:
        ax.text(place, -0.5, name, va="center", weight="bold", fontsize=6.5)
    ax.axhline(0.0, color="0.3", lw=0.5)
    for row, reading in enumerate(readings):
        number = f"{reading.eigenvalue:.2f}".replace("-", "\N{MINUS SIGN}") + ("*" if reading.beaten else "")
        cells = (str(reading.head + 1), number, *(listed(end) for end in reading.ends))
        for (place, _), cell in zip(columns, cells, strict=True):
            ax.text(place, row + 0.5, cell, va="center", fontsize=6.5)


def listed(words: Sequence[str]) -> str:
    """The words one after the other, so many as there is room for."""
    shown = [drawable(word) for word in words]
    # At least one word, however long.
    while len(shown) > 1 and len("  ".join(shown)) > LETTERS:
        shown = shown[:-1]
    return "  ".join(shown)


# The spectra of a network's heads as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p, network = settings.read(Parameters), network_of(settings)
    m = measure(p, network, settings, say)
    # (heads, k) complex, and (heads, 2k or d) real.
    value, forms = m.value, m.forms
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "layer": m.p.layer, "heads": len(value), "size of a head": value.shape[1],
         "hidden size": m.matrices.value.shape[2], "beta before training": m.untrained,
         "random directions": p.draws, "starts": 1, "solver": "none: weights in float64"},
        {"rank": np.arange(1, forms.shape[1] + 1), "query_key": forms.mean(axis=0), "query_key_by_head": forms,
         "real_by_head": np.real(value), "imaginary_by_head": np.imag(value), "beta_by_head": m.beta,
         "disc_by_head": m.radius},
        partial(draw, m),
        None,
        on=network.measured(),
    )  # fmt: skip


def _check(settings: Settings) -> None:
    layers = network_of(settings).model.num_layers
    check_integer(settings.read(Parameters).layer, "layer", least=1, most=layers, remedy="name one of the network")


FIGURE = declared("albert-spectra", _run, parameters=Parameters, check=_check)
