"""The minimal pairs: their number of each kind, no text twice, and a score that counts the pairs in order."""

from collections import Counter

import numpy as np
import pytest

from tests.docs.tools import tool


tool("results")  # puts benchmarks on the path
from sentiment_pairs import read_pairs, score  # pyright: ignore[reportMissingImports]


PAIRS = list(read_pairs())


def test_the_pairs_are_those_of_the_page():
    counts = {"negation": 80, "contrast": 40, "intensity": 40, "irony": 40, "further negation": 40}
    counts |= {"held-out negation": 40}
    assert Counter(pair.kind for pair in PAIRS) == counts
    texts = [text.lower() for pair in PAIRS for text in pair.texts]
    assert len(set(texts)) == 560 and max(len(text.split()) for text in texts) <= 15
    assert all(text.endswith((".", "?")) for text in texts)
    labels = dict.fromkeys(counts, {(1, 0)}) | {"intensity": {(1, 1), (0, 0)}}
    assert {kind: {pair.labels for pair in PAIRS if pair.kind == kind} for kind in labels} == labels
    for kind in labels:
        domains = Counter(pair.domain for pair in PAIRS if pair.kind == kind)
        assert domains.keys() == {"films", "phones", "food", "books", "hotels"} and min(domains.values()) >= 5
    for kind in ("negation", "further negation", "held-out negation"):
        assert len({pair.form for pair in PAIRS if pair.kind == kind}) == 9


class Known:
    """A classifier that knows the answers, except for some kinds, whose two texts have nearly equal logits."""

    def __init__(self, blind=()):
        self.blind = blind

    def logits(self, texts):
        pairs = {pair.texts[0]: pair for pair in PAIRS}
        higher = [pairs[text] for text in texts[::2]]
        step = np.array([0.00001 if pair.kind in self.blind else 0.5 for pair in higher])
        middle = np.array([sum(pair.labels) - 1 for pair in higher])
        return np.stack([middle + step, middle - step], axis=1).reshape(-1)


@pytest.mark.parametrize("blind", ((), ("irony", "negation")))
def test_the_score_counts_pairs_in_order(blind):
    found = score(Known(blind))
    for kind in ("negation", "contrast", "intensity", "irony", "held-out negation"):
        assert found[kind] == (kind not in blind)
    assert found["negation by hardly"] == found["negation"]
    # Nearly equal logits have the right sign, so that labels can be right where the score is not.
    assert found["labels of contrast"] == 1
