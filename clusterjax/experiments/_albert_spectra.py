"""The spectra of a trained network's heads: V in the complex plane, Q^T K, effective beta, and the words of V."""

from collections.abc import Callable

import numpy as np

from .._observables import effective_beta
from ._albert_spectra_measure import DRAWS, TOP, Spectra, spectra_of
from ._albert_spectra_panels import draw
from ._experiment import Claim, Experiment, Outcome, Settings
from ._networks import Network, network_of
from ._sources import ALBERT_XL
from ._verdict import ANY, Source


PAPER = Source("Geshkovski et al., 2305.05465, the spectra of ALBERT", ALBERT_XL, ANY)  # weights read no texts
OUTSIDE = 1.25  # times the radius of the disc
CHANCE = 0.05


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = network_of(settings)
    say(f"taking the spectra of {found.model.num_heads} heads")
    measured = spectra_of(found, settings.seed)
    value, forms = measured.value, measured.forms
    return Outcome(
        caption_of(found, measured),
        claims_of(measured),
        {"network": found.words, "heads": len(value), "size of a head": value.shape[1],
         "hidden size": measured.matrices.value.shape[2], "beta before training": measured.untrained,
         "random directions": DRAWS, "starts": 1, "solver": "none: weights in float64"},
        {"rank": np.arange(1, forms.shape[1] + 1), "query_key": forms.mean(axis=0), "query_key_by_head": forms,
         "real_by_head": np.real(value), "imaginary_by_head": np.imag(value), "beta_by_head": measured.beta,
         "disc_by_head": measured.radius},
        lambda: draw(measured),
        None,
        on=found.measured(),
    )  # fmt: skip


def caption_of(found: Network, measured: Spectra) -> str:
    """What is seen of the spectra.

    Source: this library.
    """
    value, beta, readings = measured.value, measured.beta, measured.readings
    blocks = measured.matrices.value.shape[0]
    outside = int((np.abs(measured.leading) > OUTSIDE * measured.radius).sum())
    beaten = [reading.head + 1 for reading in readings if reading.beaten]
    text = (
        f"The heads of {found.words}"
        + (f": those of the first of {blocks} layers with weights of their own" if blocks > 1 else "")
        + f". (a) The eigenvalues of V for each head, those {value.shape[1]} that need not be zero, that of largest "
        f"modulus filled; {100 * np.mean(np.real(value) > 0):.0f} % have a positive real part. Dashed: the disc that "
        "random matrices with the norms of the two factors of V fill; the largest modulus exceeds its radius "
        f"{OUTSIDE:g} times at {outside} of {len(value)} heads. (b) The eigenvalues of the symmetric part of Q^T K, "
        "its scale included, in decreasing order, those that need not be zero; the colours are those of (c). (c) "
        "Effective beta, √d times the Frobenius norm of that part (it is beta if that is beta I / d), from "
        f"{beta.min():.3g} to {beta.max():.3g}; dashed: that of random weights, {measured.untrained:.3g}."
    )
    if not readings:
        return text
    near, drawn, chance = _nearness(measured)
    return text + (
        f" (d) The {TOP} symbols of the vocabulary nearest to the eigenvector of V with the largest real eigenvalue, "
        "and to its opposite, which an eigenvector does not tell apart; so many as there is room for"
        + (f"; * at heads {beaten} a pair of complex eigenvalues has a larger real part" if beaten else "")
        + f". Their largest cosine is {near:.2f} in the mean, {drawn.mean():.2f} for random directions that the heads "
        + ("write." if chance < CHANCE else f"write: the words may be chance (probability {chance:.2f}).")
    )


def claims_of(measured: Spectra) -> tuple[Claim, ...]:
    """What the theory asks of the heads, what is found, and what must hold.

    Source: this library.
    """
    return (
        _claim_of_leading(measured),
        _claim_of_forms(measured),
        _claim_of_discs(measured),
        _claim_of_beta(measured),
        *_claim_of_words(measured),
        *_identities(measured),
    )


def _claim_of_leading(measured: Spectra) -> Claim:
    agree = np.array([bool(yes) and measured.form_along(head) > 0 for head, yes in enumerate(measured.dominant)])
    return Claim(
        "V has a leading eigenvalue that is real, simple and positive, as the theorem on three hyperplanes asks.",
        f"the eigenvalue of largest modulus is so at {_listed(measured.dominant)} of {len(agree)} heads, and there "
        f"<Qv, Kv> > 0, which is asked of its eigenvector as well, at {_listed(agree)}; that of largest real part is "
        f"real and positive at {_listed(measured.rightmost)}",
        "of largest modulus: at one head or more",
        bool(measured.dominant.any()),
        "paper",
        float(measured.dominant.sum()),
        source=PAPER,
    )


def _listed(which: np.ndarray) -> str:
    heads = [int(head) + 1 for head in np.flatnonzero(which)]
    return f"{len(heads)} {heads}" if heads else "none"


def _claim_of_forms(measured: Spectra) -> Claim:
    forms = measured.forms
    d, k = measured.matrices.query.shape[2:]
    share = 100 * (np.minimum(forms, 0.0) ** 2).sum(axis=1) / (forms**2).sum(axis=1)
    ratio = -forms[:, -1] / forms[:, 0]
    definite = (forms[:, -1] > 0) & (2 * k >= d)
    why = f", its rank being {2 * k} at most where {d} would be needed" if 2 * k < d else ""
    return Claim(
        "The symmetric part of Q^T K is positive definite, as the theorem on V = I asks.",
        f"at {int(definite.sum())} of {len(forms)} heads{why}; its negative part has {share.min():.0f} to "
        f"{share.max():.0f} % of the squared norm, and the lowest eigenvalue is {ratio.min():.2f} to {ratio.max():.2f} "
        "times as far from zero as the highest",
        "at every head",
        bool(definite.all()),
        "paper",
        float(share.max()),
        source=PAPER,
    )


def _claim_of_discs(measured: Spectra) -> Claim:
    ratio = np.abs(measured.leading) / measured.radius
    return Claim(
        "Training has given V eigenvalues that random matrices of the same norms do not have.",
        f"the largest modulus is {ratio.min():.2f} to {ratio.max():.2f} times the radius of their disc, "
        f"{ratio.mean():.2f} in the mean",
        f"above {OUTSIDE:g} at half of the heads or more",
        bool(np.mean(ratio > OUTSIDE) >= 0.5),
        "finding",
        float(ratio.mean()),
    )


def _claim_of_beta(measured: Spectra) -> Claim:
    beta = measured.beta
    return Claim(
        "Training has sharpened the attention of every head.",
        f"effective beta {beta.min():.3g} to {beta.max():.3g}; of random weights, as they are drawn before "
        f"training, {measured.untrained:.3g}",
        "the smallest is above 1.1 times that of random weights",
        bool(beta.min() > 1.1 * measured.untrained),
        "finding",
        float(beta.min()),
    )


def _claim_of_words(measured: Spectra) -> tuple[Claim, ...]:
    if not measured.readings:
        return ()
    found, drawn, chance = _nearness(measured)
    return (
        Claim(
            "The top eigenvectors of V lie nearer to single words than other directions that the heads write.",
            f"largest cosine with a word, the mean over heads: {found:.3f}; for random directions {drawn.mean():.3f} ± "
            f"{drawn.std(ddof=1):.3f} (spread), and as large with probability {chance:.2f}",
            f"probability below {CHANCE:g}",
            chance < CHANCE,
            "finding",
            found,
        ),
    )


def _nearness(measured: Spectra) -> tuple[float, np.ndarray, float]:
    """The largest cosine of an eigenvector with a word, the mean over heads; the same of random directions; and how
    probably one of these has as large a one."""
    found = float(np.mean([reading.cosine for reading in measured.readings]))
    drawn = np.mean([reading.drawn for reading in measured.readings], axis=0)
    return found, drawn, (1 + int((drawn >= found).sum())) / (1 + len(drawn))


def _identities(measured: Spectra) -> tuple[Claim, ...]:
    head = int(np.abs(measured.leading).argmax())
    query, key, value, output = (one[0, head] for one in measured.matrices[:4])
    small, whole = measured.value[head], np.linalg.eigvals((value @ output).T)
    others = len(whole) - len(small)
    far = np.abs(small[:, None] - whole[None, :]).min(axis=1).max()
    off = float(max(far, np.sort(np.abs(whole))[:others].max(initial=0.0)) / np.abs(small).max())
    expected = effective_beta(measured.matrices.scale * query @ key.T)
    error = abs(float(measured.beta[head]) - expected) / expected
    return (
        Claim(
            f"The small product has the spectrum of the whole operator V, {len(whole)} x {len(whole)}.",
            f"head {head + 1}: largest difference {off:.1e} of the largest modulus, from the nearest eigenvalue, or of "
            f"the other {others} from zero",
            "less than 1e-6",
            off < 1e-6,
            "identity",
            off,
        ),
        Claim(
            "Effective beta is that of the whole Q^T K.",
            f"head {head + 1}: relative difference {error:.1e}",
            "less than 1e-9",
            error < 1e-9,
            "identity",
            error,
        ),
        *_inertia(measured),
    )


def _inertia(measured: Spectra) -> tuple[Claim, ...]:
    k = measured.matrices.query.shape[3]
    size = np.abs(measured.forms)
    whole = (size > 1e-9 * size.max(axis=1, keepdims=True)).all(axis=1)  # neither tied nor pruned
    if 2 * k > measured.matrices.query.shape[2] or not whole.any():
        return ()
    negative = (measured.forms[whole] < 0).sum(axis=1)
    return (
        Claim(
            "The symmetric part of Q^T K has as many negative eigenvalues as positive ones, as independent factors "
            "have by Sylvester's law of inertia.",
            f"{negative.min()} to {negative.max()} of {2 * k} are negative at each of {len(negative)} heads",
            f"{k}, the size of a head",
            bool((negative == k).all()),
            "identity",
            float(negative.max()),
        ),
    )


ALBERT_SPECTRA = Experiment(
    "albert-spectra",
    "albert_spectra",
    "The spectra of a trained network's heads",
    "Geshkovski et al. (2305.05465): what tokens come to depends on the spectra of V and of Q^T K; theorems ask for a "
    "real, simple, positive leading eigenvalue of V, or for a positive definite Q^T K, and ALBERT is looked at.",
    _run,
    reads_texts=True,
)
