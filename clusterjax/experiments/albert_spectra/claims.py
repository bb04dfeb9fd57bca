"""What is claimed of the spectra of a network's heads: what theorems ask of V and Q^T K, and what training gave."""

import numpy as np

from ..._observables import effective_beta
from ..framework.experiment import Claim
from ..framework.networks import Network
from ..framework.sources import ALBERT_XL
from ..framework.verdict import ANY, Source
from .measure import Results


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
