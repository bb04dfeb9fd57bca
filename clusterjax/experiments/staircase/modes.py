r"""How many modes the density of tokens has, if each is spread over a Gaussian of variance 1 / beta.

Algorithm: the sign of the derivative on a grid of `FINE` points in each width $\beta^{-1/2}$, and the zeros between two
points where it turns from positive to negative; of each stretch of the grid only tokens within `FAR` widths count. A
mode that is nearer to its trough than the grid is fine is passed over, of a thousand about one.

Source: Geshkovski, Rigollet and Sun, *On the number of modes of Gaussian kernel density estimators* (2412.09080):
of n normal tokens there are $\Theta(\sqrt{\beta\log\beta})$ where $n^c \lesssim \beta \lesssim n^{2 - c}$, a guess of
how many clusters metastable tokens have.

Invariants: modes lie between the first and the last token; one token has one, two have two if and only if they are
farther apart than two widths.
"""

import numpy as np
from jaxtyping import Float


FINE, FAR, CHUNK = 16, 9, 256  # e^(-FAR^2 / 2) of a token is left out, less than 1e-17
# beta = n^power, within the range of the theorem, whose c is 2/3.
POWERS = (2 / 3, 1.0, 4 / 3)


def modes_of(tokens: Float[np.ndarray, " n"], beta: float) -> Float[np.ndarray, " modes"]:
    """Where the modes are, rising."""
    x, width = np.sort(tokens), beta**-0.5
    # Of tokens that do not see each other, each group by itself: what is between them would be a long grid of zeros.
    groups = np.split(x, 1 + np.flatnonzero(np.diff(x) > 2 * FAR * width))
    return np.concatenate([_of_group(group, width) for group in groups])


def _of_group(x: np.ndarray, width: float) -> np.ndarray:
    # A little beyond the first and the last token, so that the derivative turns at each end.
    places = np.arange(x[0] - width, x[-1] + width + width / FINE, width / FINE)
    slopes = np.concatenate([_slopes(part, x, width) for part in np.split(places, range(CHUNK, len(places), CHUNK))])
    # Where it is zero it turns at the next place where it is not.
    seen = np.flatnonzero(slopes)
    places, slopes = places[seen], slopes[seen]
    turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] < 0))
    share = slopes[turns] / (slopes[turns] - slopes[turns + 1])
    return places[turns] + share * (places[turns + 1] - places[turns])


def _slopes(places: np.ndarray, x: np.ndarray, width: float) -> np.ndarray:
    near = x[np.searchsorted(x, places[0] - FAR * width) : np.searchsorted(x, places[-1] + FAR * width)]
    away = (near[None] - places[:, None]) / width
    return np.sum(away * np.exp(-(away**2) / 2), axis=1)


def counts_of_normal(seed: int, sizes: tuple[int, ...], draws: int) -> Float[np.ndarray, "powers draws sizes"]:
    """How many modes n normal tokens have at beta = n^power, for each of `POWERS`; more draws leave the first as they
    are."""
    counts = np.zeros((len(POWERS), draws, len(sizes)))
    for draw in range(draws):
        for k, n in enumerate(sizes):
            x = np.random.default_rng([seed, 2412, draw, n]).normal(size=n)
            for p, power in enumerate(POWERS):
                counts[p, draw, k] = len(modes_of(x, n**power))
    return counts


def slopes_of(
    counts: Float[np.ndarray, "powers draws sizes"], laws: Float[np.ndarray, "powers sizes"]
) -> Float[np.ndarray, "powers draws"]:
    """The slope of the logarithm of the count over that of a law, of each draw."""
    logs, x = np.log(counts), np.log(laws)
    x = x - x.mean(axis=1, keepdims=True)
    return np.einsum("pdk,pk->pd", logs, x) / np.sum(x**2, axis=1)[:, None]


def laws_of(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    r"""$\sqrt{\beta\log\beta}$ and $\sqrt\beta$ at beta = n^power, (powers, sizes) each."""
    betas = np.array(sizes, float)[None] ** np.array(POWERS)[:, None]
    return np.sqrt(betas * np.log(betas)), np.sqrt(betas)
