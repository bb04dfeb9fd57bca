r"""What attention sinks are worth: the loss under a sliding window, with and without the first tokens in sight.

The window w lets token i attend to tokens i - w + 1 to i; with k tokens kept, to the first k as well (streaming). The
cost is the mean of $\ell_i(w, k) - \ell_i$ over the places i at which the window has lost sight of something, which is
from place w on, in each text; the full causal mask has $\ell_i$. Positions are those of the whole text: no token is
moved closer.

Source: Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453), Sections 3.1 and 3.2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ... import SinkMask, WindowMask, probe
from ...probe.measures.tally import Average, Clustered, average_of, clustered_error


LONGEST = 256
KEPT = (0, 1, 4)


@dataclass(frozen=True, eq=False)
class Windows:
    """The cost of each window, in nats for each token.

    **Attributes:**

    - `widths`: The windows, increasing.
    - `loss`: Of the full mask over all tokens of a text, (): an `Average` over texts.
    - `cost`: By width and kept tokens, the mean over the places from the width on, an `Average` over texts.
    - `texts`: How many texts are longer than each width.
    - `articles`: By width, the article of each text that is longer, over which errors are.
    - `off`: The largest difference of a loss from that of the full mask at a place that sees the same.
    """

    widths: tuple[int, ...]
    loss: Average
    cost: dict[tuple[int, int], Average]
    texts: dict[int, int]
    articles: dict[int, np.ndarray]
    off: float

    def given_back(self, width: int, kept: int, than: int = 0, share: float = 0.0) -> Clustered:
        """By how much less the window costs with `kept` tokens than with `than`, paired by text, less a share of what
        it costs with `than`."""
        with_less, with_more = self.cost[width, than].values, self.cost[width, kept].values
        assert with_less is not None and with_more is not None
        return clustered_error((1 - share) * with_less - with_more, self.articles[width])


def windows_of(
    model: probe.Model, texts: probe.Encoded, articles: np.ndarray, width: int, quick: bool, say: Callable[[str], None]
) -> Windows:
    """The loss of a causal network on texts under all windows."""
    # A quick run has the widest window alone: each mask is a pass over all texts.
    widths = (width,) if quick else (width // 4, width // 2, width)
    say("the loss under the full causal mask")
    plain = probe.token_losses(model, texts)
    words, cost, off, texts_of, articles_of = texts.mask.sum(axis=1), {}, 0.0, {}, {}
    for w in widths:
        # Place w is the first from which the window does not reach token 0, and the last loss is at n - 2.
        long = words - 1 > w
        if (counted := int(long.sum())) < 2:
            say(f"no window of {w} tokens: only {counted} texts are longer")
            continue
        texts_of[w], articles_of[w] = counted, articles[long]
        for kept in KEPT:
            say(f"the loss under a window of {w} tokens with {kept} kept")
            mask = SinkMask(w, kept) if kept else WindowMask(w, causal=True)
            lost = probe.token_losses(probe.with_mask(model, mask), texts) - plain
            cost[w, kept] = average_of(np.nanmean(lost[long, w:], axis=1), articles[long])
            # Up to there the window sees what the full mask does.
            off = max(off, float(np.nanmax(np.abs(lost[:, :w]))))
    loss = average_of(np.nanmean(plain, axis=1), articles)
    return Windows(tuple(texts_of), loss, cost, texts_of, articles_of, off)
