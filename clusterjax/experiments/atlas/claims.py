"""What is claimed of the atlas: theorems and conjectures cell by cell, and what certifies the other cells.

Criteria were set before any limit was looked at. Before that, only the steps that runs of another seed take had been
counted, to choose the tolerance of the solver and the number of tokens. After a quick run of 16 starts the runs were
made fifty times longer, since tokens of a negative V had not come to rest at beta = 1 and 3. After a full run a rest
was asked to have had ten relaxation times, since rates of 1e-13 of either sign, of rounding, had counted as attracting
in a part of the starts of a negative V. After that run, in which 32 of 36 cells were certified, curves that attract
were added to what certifies, and the leading eigenvalue of the negative V was moved from -0.5, where tokens come to
rest only like a power of t, to -0.4. No criterion of a claim was changed.
"""

import numpy as np

from ..._limits.result import ONE, OPPOSITE
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent
from ..framework.verdict import ANY, Source
from .heads import MARKS
from .measure import APART, CURVE, EARLY, REST, THEOREM, TOLERANCE, Cell, Results
from .spectra import BETAS, CAUSAL, DOUBLE, FULL, IDENTITY, MASKS, PAIR, REPULSIVE, SIMPLE, D


FIRST = 1e-3  # how far a first token may be from e^(tV) x_1: the tolerance of the solver is 1e-5
RATE = 0.01  # of the rates at one point
SHARE = 0.95  # of the starts of each cell
COSINE = 0.01  # of two cosines that count as the same
WAITING = 0.5  # the share of the starts of V = I that still have several clusters at the large beta
ONE_POINT = Source("2312.10794, Theorem 6.1", ANY, ANY)
COLLAPSE = Source("2411.04990, Theorem 4.1", ANY, ANY)
SIMPLE_TOP = Source("2411.04990, the conjecture on a simple leading eigenvalue", ANY, ANY)
DOUBLE_TOP = Source("2411.04990, the conjecture on a multiple leading eigenvalue", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (
        _first(m), _rates(m), _one_point(m, FULL), _one_point(m, CAUSAL), _waiting(m), _simple(m), _double(m),
        _simple_full(m), _double_full(m), _pair(m), _apart(m), _cross(m), _certified(m), *_leading(m),
    ))  # fmt: skip


def _each(shares: dict[float, np.ndarray]) -> tuple[str, float, float]:
    """By beta which starts are so, as text; the smallest share and its error."""
    found = {beta: mean_and_error(yes) for beta, yes in shares.items()}
    text = ", ".join(f"{percent(mean, error)} (beta = {beta:g})" for beta, (mean, error) in
                     found.items())  # fmt: skip
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return text, float(least), float(error)


def _first(m: Results) -> Claim:
    off = max(cell.off for cell in m.cells.values())
    return Claim(
        says="The first token of a causal head moves alone: it is at e^(tV) x_1, normalised, for every V.",
        measured=f"at most {off:.1e} from it, in all cells and at all times",
        criterion=f"less than {FIRST:g}",
        holds=off < FIRST,
        kind="identity",
        value=off,
    )


def _rates(m: Results) -> Claim:
    off = 0.0
    for mask, rate in {FULL: 1.0, CAUSAL: 0.5}.items():
        for cell in m.of(IDENTITY, mask).values():
            found = cell.rates[(cell.kinds == ONE) & cell.certified]
            off = max(off, float(np.abs(found - rate).max(initial=0.0)))
    return Claim(
        says="With V = I the slowest rate at one point is 1 under full and 1/2 under causal attention, for every beta.",
        measured=f"off by {off:.1e} at most, from the Jacobian at the end of each start",
        criterion=f"less than {RATE:g}",
        holds=off < RATE,
        kind="identity",
        value=off,
    )


def _one_point(m: Results, mask: str) -> Claim:
    cells = m.of(IDENTITY, mask)
    there = {beta: (cell.kinds == ONE) & (cell.by == THEOREM) for beta, cell in cells.items()}
    lost = sum(cell.followed[1] for cell in cells.values())
    says = "With V = I and a full mask all tokens come to one point, from almost every start."
    if mask == CAUSAL:
        says = "With V = I and a causal mask all tokens come to the first."
        # The first token rests where it starts.
        near = {beta: np.linalg.norm(cell.ends - m.x0[:, :1], axis=2).max(axis=1) for beta, cell in cells.items()}
        there = {beta: yes & (near[beta] < 2 * TOLERANCE) for beta, yes in there.items()}
    text, least, error = _each(there)
    latest = max(float(cell.log_times.max()) for cell in cells.values())
    return Claim(
        says=says,
        measured=f"certified: {text}; the latest is there at t = 1e{latest:.1f}"
        + (f"; {lost} could not be followed" if lost else ""),
        criterion="every start at every beta",
        holds=least == 1.0,
        kind="paper",
        value=least,
        error=error,
        source=COLLAPSE if mask == CAUSAL else ONE_POINT,
    )


def _waiting(m: Results) -> Claim:
    large = BETAS[-1]
    found = {mask: mean_and_error(m.cells[IDENTITY, large, mask].early > 1) for mask in MASKS}
    listed = ", ".join(f"{percent(s, e)} ({mask})" for mask, (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"At beta = {large:g} what is seen at t = {EARLY:g} is not the limit: several clusters, where V = I has "
        "one point.",
        measured=f"several clusters by then: {listed} of the starts",
        criterion=f"more than {100 * WAITING:g} % under either mask",
        holds=bool(least > WAITING),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def to_axis(cell: Cell) -> np.ndarray:
    """How far a token of each start is from both ends of the first axis, (starts,)."""
    beside = np.linalg.norm(cell.ends[..., 1:], axis=-1)
    # The chord to the nearer end.
    return np.hypot(beside, 1 - np.abs(cell.ends[..., 0])).max(axis=1)


def _on_axis(cell: Cell) -> np.ndarray:
    kinds = (cell.kinds == ONE) | (cell.kinds == OPPOSITE)
    return kinds & cell.certified & (to_axis(cell) < 2 * TOLERANCE)


def _simple(m: Results) -> Claim:
    cells = m.of(SIMPLE, CAUSAL)
    text, least, error = _each({beta: _on_axis(cell) for beta, cell in cells.items()})
    return Claim(
        says="With a simple leading eigenvalue and a causal mask every token comes to its eigenvector, or to the "
        "opposite of it.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="paper",
        value=least,
        error=error,
        source=SIMPLE_TOP,
    )


def _double(m: Results) -> Claim:
    # The projection of the first token to the plane of the double eigenvalue.
    plane = m.x0[:, 0] * np.array([1.0, 1.0, 0.0])
    place = plane / np.linalg.norm(plane, axis=1, keepdims=True)
    cells = m.of(DOUBLE, CAUSAL)
    there = {
        beta: cell.certified & (np.linalg.norm(cell.ends - place[:, None], axis=2).max(axis=1) < 2 * TOLERANCE)
        for beta, cell in cells.items()
    }
    text, least, error = _each(there)
    return Claim(
        says="With a double leading eigenvalue and a causal mask all tokens come to the projection of the first to its "
        "plane.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="paper",
        value=least,
        error=error,
        source=DOUBLE_TOP,
    )


def _simple_full(m: Results) -> Claim:
    cells = m.of(SIMPLE, FULL)
    text, least, error = _each({beta: _on_axis(cell) for beta, cell in cells.items()})
    both = ", ".join(f"{100 * cell.share(OPPOSITE):.0f} %" for cell in cells.values())
    return Claim(
        says="With a simple leading eigenvalue and a full mask too, tokens of random starts come to its eigenvector,"
        " or to the opposite of it.",
        measured=f"certified there: {text}; at both ends: {both}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _double_full(m: Results) -> Claim:
    cells = m.of(DOUBLE, FULL)
    flat = {beta: np.abs(cell.ends[..., 2]).max(axis=1) < 2 * TOLERANCE for beta, cell in cells.items()}
    text, least, error = _each({beta: (cell.kinds == ONE) & cell.certified & flat[beta] for beta, cell in
                                cells.items()})  # fmt: skip
    return Claim(
        says="With a double leading eigenvalue and a full mask all tokens come to one point of its circle.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _pair(m: Results) -> Claim:
    found = {}
    for mask in MASKS:
        shares = {beta: (cell.kinds == ONE) & cell.certified for beta, cell in m.of(PAIR, mask).items()}
        found[mask] = _each(shares)
    least, error = min((least, error) for _, least, error in found.values())
    return Claim(
        says="With a complex leading pair all tokens come to one point, which turns for ever at the imaginary part.",
        measured="certified in the frame that turns: " + "; ".join(f"{mask}: {text}" for mask, (text, _, _) in
                                                                   found.items()),
        criterion=f"more than {100 * SHARE:g} % of the starts in every cell",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )  # fmt: skip


def sorted_cosines(x: np.ndarray) -> np.ndarray:
    """The cosines of all pairs of tokens (..., n, d), in order, (..., pairs)."""
    i, j = np.triu_indices(x.shape[-2], 1)
    return np.sort(np.einsum("...id,...jd->...ij", x, x)[..., i, j], axis=-1)


def energies(x: np.ndarray, beta: float) -> np.ndarray:
    """The logarithm of the sum of e^(beta cosine) over all pairs, (...)."""
    exponents = beta * sorted_cosines(x)
    return np.asarray(exponents[..., -1] + np.log(np.exp(exponents - exponents[..., -1:]).sum(axis=-1)))


def _apart(m: Results) -> Claim:
    same = {}
    for beta, cell in m.of(REPULSIVE, FULL).items():
        cosines = sorted_cosines(cell.ends)
        # The certified one of least energy: V = -I descends it.
        energy = np.where(cell.certified, energies(cell.ends, beta), np.inf)
        off = np.abs(cosines - cosines[int(energy.argmin())]).max(axis=1)
        same[beta] = (cell.kinds == APART) & cell.certified & (off < COSINE)
    text, least, error = _each(same)
    return Claim(
        says="With V = -I and a full mask all tokens stay apart, and come to one configuration, up to rotations and "
        "order.",
        measured=f"the cosines of all pairs are those of the least energy, within {COSINE:g}: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def cross_error(x: np.ndarray) -> np.ndarray:
    """How far the first 2 d tokens (..., n, d) are from d pairs of opposite points on orthogonal axes: the largest
    error of a cosine, (...)."""
    d = x.shape[-1]
    first = x[..., : 2 * d, :]
    count = first.shape[-2]
    wanted = np.eye(count)
    for k in range(0, count - 1, 2):
        wanted[k, k + 1] = wanted[k + 1, k] = -1.0
    return np.asarray(np.abs(np.einsum("...id,...jd->...ij", first, first) - wanted).max(axis=(-1, -2)))


def _cross(m: Results) -> Claim:
    cells = m.of(REPULSIVE, CAUSAL)
    text, least, error = _each({beta: cross_error(cell.ends) < COSINE for beta, cell in cells.items()})
    count = min(2 * D, m.p.n)
    fewer = ", ".join(
        f"{100 * min(float(np.mean(cross_error(cell.ends[:, :k]) < COSINE)) for cell in cells.values()):.0f} % of the "
        f"first {k}"
        for k in range(2, count)
    )
    return Claim(
        says=f"With V = -I and a causal mask the first {count} tokens come to opposite points on orthogonal axes, pair "
        "by pair.",
        measured=f"all their cosines within {COSINE:g}: {text}; of fewer tokens, at the worst beta: {fewer}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _certified(m: Results) -> Claim:
    shares = {key: float(cell.certified.mean()) for key, cell in m.cells.items()}
    lacking = [f"{row}, beta = {beta:g}, {mask}: {100 * share:.0f} %" for (row, beta, mask), share in shares.items()
               if share <= SHARE]  # fmt: skip
    theorems = sum(bool(cell.theorems) for cell in m.cells.values())
    resting = sum(bool((cell.by == REST).any()) for cell in m.cells.values())
    curves = sum(bool((cell.by == CURVE).any()) for cell in m.cells.values())
    return Claim(
        says="In every cell of the atlas more than 95 % of the starts have a certified limit.",
        measured=f"{len(shares) - len(lacking)} of {len(shares)} cells have; {theorems} by a theorem, {resting} by "
        f"rests that attract, {curves} by curves that attract, for some of their starts or all"
        + (f"; not certified: {'; '.join(lacking)}" if lacking else ""),
        criterion=f"more than {100 * SHARE:g} % of the starts of each cell",
        holds=not lacking,
        kind="finding",
        value=min(shares.values()),
    )


def _leading(m: Results) -> tuple[Claim, ...]:
    if not m.heads:
        return ()
    found = {one.name: float(np.mean(one.cases == "attractive")) for one in m.heads}
    listed = ", ".join(
        f"{int(np.sum(one.cases == 'attractive'))} of {len(one.cases)} ({one.name}; effective beta "
        f"{one.beta.min():.3g} to {one.beta.max():.3g})"
        for one in m.heads
    )
    return (
        Claim(
            says="Most heads of trained networks are in the row of a simple leading eigenvalue.",
            measured=f"real and positive: {listed}",
            criterion="more than half of the heads of each network",
            holds=min(found.values()) > 0.5,
            kind="finding",
            value=min(found.values()),
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what certifies it."""
    placed = "; ".join(
        f"{words}: {len(one.cases)} of {one.network}" for one, words in zip(m.heads, MARKS.values(), strict=False)
    )
    return (
        f"Where {m.p.n} uniform tokens of the sphere in R^{D} end with Q = K = I, by the eigenvalues of V, beta and "
        f"the mask: {m.starts} starts in each of {len(m.cells)} cells. (a) Colours are the shares of the limits that "
        "starts end in; hatched is what nothing certifies. "
        f"Letters: T, a theorem says so and the tokens are there within {TOLERANCE:g}; R, no theorem is known, and the "
        "tokens are at a rest that attracts, to first order, in the frame that turns with V; C, they are on a closed "
        "curve that attracts and has one shape all along, which they follow more slowly than the run is long. Below "
        "them the median of the time. V = I is followed to the last merger. Numbers on white: how many heads of "
        "networks have such a leading eigenvalue, in the column nearest to their effective beta, those beyond all "
        f"columns in the last ({placed}). (b) These heads, by effective beta and the angle of the leading eigenvalue "
        "of V in the complex plane. A head is not a cell: it has more eigenvalues, and another Q^T K. " + m.absent
    ).strip()
