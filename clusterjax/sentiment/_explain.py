"""Why a review is called positive or negative: its leaders, their followers, and the path of each word.

Leaders are those of 2407.01602: words that at some layer attend to themselves alone. A follower belongs to the leader
that is nearest to where its chain of targets ends. Contributions are the shares of `HardmaxClassifier.shares` times
<w, E_i>, so that with v they add up to the logit exactly.

Invariants: a text without known words has the logit v, no leaders and empty arrays; JSON records hold plain numbers.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._check import check_integer, check_sequence, check_text
from .._iterate import iterate
from ..hardmax import HardmaxLayer, leaders
from ._encode import encode_reviews
from ._fit import Fitted, check_fitted
from ._leading import lead
from ._model import HardmaxClassifier, predict_logits
from ._quick import filter_jit_quickly
from ._reviews import Reviews
from ._vocabulary import Vocabulary


# Words. Up to here what is compiled in a fifth of the time is slower by at most 25 ms (four heads).
_SHORT = 128


@final
@dataclass(frozen=True)
class Leading:
    """A leader of one review, and the words that follow it.

    **Attributes:**

    - `word`: The leader.
    - `followers`: The words that end at it, in the order of the review.
    - `since`: The first layer at which it attended to itself alone.
    - `distance`: How far it is from the hyperplane, on the positive side if above zero.
    - `head`: In which head.
    """

    word: str
    followers: tuple[str, ...]
    since: int
    distance: float
    head: int


@final
@dataclass(frozen=True, eq=False)
class Explanation:
    """What the classifier says of one review, and why.

    **Attributes:**

    - `logit`: Positive means a positive review; the offset v if no word is known.
    - `words`, `counts`: The known words that were read, each once, and how often each is there.
    - `leaders`: The leaders with their followers, most followed first; none if no word is known.
    - `contributions`: What each word's embedding adds to the logit; with v they sum to it, exactly.
    - `path`: (layers, words, heads, d), where the words are before the first layer and after each.
    - `scores`: (layers, words), the logit of a review that ended in this place alone: its sign is the side of the
        hyperplane.
    - `unknown`: The words of the text that the vocabulary does not have, each once; n-grams are not named.
    - `cut`: How many known words stand before the last ones, which alone are read of a long text.
    """

    logit: float
    words: tuple[str, ...]
    counts: tuple[int, ...]
    leaders: tuple[Leading, ...]
    contributions: Float[np.ndarray, " words"]
    path: Float[np.ndarray, "layers words heads d"]
    scores: Float[np.ndarray, "layers words"]
    unknown: tuple[str, ...] = ()
    cut: int = 0

    @property
    def probability(self) -> float:
        """That the review is positive."""
        return _probability(self.logit)

    @property
    def sentiment(self) -> str:
        """`positive` or `negative`."""
        return _sentiment(self.logit)

    def record(self) -> dict[str, Any]:
        """All of it as a dictionary that JSON can hold."""
        return {
            "sentiment": self.sentiment,
            "probability": self.probability,
            "logit": self.logit,
            "known_words": len(self.words),
            "unknown_words": list(self.unknown),
            "words_before": self.cut,
            "leaders": [asdict(leader) for leader in self.leaders],
            "words": [
                {"word": word, "count": count, "contribution": float(part), "scores": score, "path": path}
                for word, count, part, score, path in zip(
                    self.words, self.counts, self.contributions, self.scores.T.tolist(),
                    np.swapaxes(self.path, 0, 1).tolist(), strict=True,
                )
            ],
        }  # fmt: skip

    def table(self, most: int = 20) -> str:
        """The path of each word through the layers, each place as its score; each leader is followed by its followers.

        **Arguments:**

        - `most`: How many words are shown; with more, those that end in the same place as one that is shown go first.
        """
        most = check_integer(most, "most")
        depth = len(self.scores) - 1
        # At most nine layers, evenly spread, with the first and the last.
        layers = sorted({round(k * depth / min(depth, 8)) for k in range(min(depth, 8) + 1)} if depth else {0})
        starred = {leader.word for leader in self.leaders}
        order = self._order()
        width = max([len(self._name(i, starred)) for i in order[:most]], default=4)
        lines = ["layer".ljust(width) + "".join(f"{k:8d}" for k in layers)]
        for i in order[:most]:
            lines.append(self._name(i, starred).ljust(width) + "".join(f"{self.scores[k, i]:+8.2f}" for k in layers))
        if len(order) > most:
            lines.append(f"and {len(order) - most} more words")
        return "\n".join(lines)

    def _name(self, i: int, starred: set[str]) -> str:
        star = "*" if self.words[i] in starred else " "
        return f"{star} {self.words[i]}" + (f" x{self.counts[i]}" if self.counts[i] > 1 else "")

    def _order(self) -> list[int]:
        """Leaders and their followers of the first head, then the rest; each word once."""
        place = {word: i for i, word in enumerate(self.words)}
        groups = [[place[leader.word], *(place[word] for word in leader.followers)] for leader in self.leaders]
        return list(dict.fromkeys([*sum(groups, []), *range(len(self.words))]))

    def __str__(self) -> str:
        head = f"{self.sentiment}, probability {self.probability:.3f} of positive (logit {self.logit:+.3f})"
        if not self.words:
            return f"{head}\nno known words: this is the answer to an empty review"
        lines = [head]
        for leader in self.leaders:
            where = "" if len(self.path[0, 0]) == 1 else f" of head {leader.head}"
            followers = _some(leader.followers) or "nobody"
            lines.append(f"leader{where} {leader.word} ({leader.distance:+.2f}), followed by {followers}")
        lines += [f"not known: {_some(self.unknown)}"] if self.unknown else []
        lines += [f"only the end was read: {self.cut} known words stand before it"] if self.cut else []
        return "\n".join([*lines, "score of each word's place (above zero: positive side; * leads)", self.table()])


def explain(fitted: Fitted, text: str) -> Explanation:
    """What the classifier says of `text`, its leaders, and the path of each word.

    A word follows the one that it attends to after the last layer, and so on until a leader.

    !!! example

        ```python
        >>> import jax
        >>> from clusterjax import sentiment
        >>> reviews = sentiment.synthetic_reviews(jax.random.key(0), 600).reviews
        >>> split = sentiment.official_split(reviews, key=jax.random.key(1))
        >>> fitted = sentiment.fit(split.train, split.validation, sentiment.Recipe(depth=2), key=jax.random.key(2))
        >>> found = sentiment.explain(fitted, "A wonderful, wonderful film with a boring end.")
        >>> found.sentiment, [leader.word for leader in found.leaders]
        ('positive', ['wonderful', 'boring'])
        >>> dict(zip(found.words, (found.contributions > 0).tolist()))
        {'wonderful': True, 'boring': False}
        ```

    **Arguments:**

    - `fitted`: A trained classifier.
    - `text`: A review, as it was written.

    **Returns:**

    An `Explanation`; of a text without a known word one with the logit v and no leaders.

    Leaders as in 2407.01602.
    """
    check_fitted(fitted)
    text, model = check_text(text, "text", empty=True), fitted.model
    length = fitted.recipe.length
    encoded = encode_reviews(Reviews((text,), np.zeros(1, np.int8)), fitted.vocabulary, length=length)
    n, (heads, d) = int(encoded.lengths[0]), model.w.shape
    w, v = np.asarray(model.w, np.float64), float(model.v)
    unknown, cut = _not_read(fitted.vocabulary, text, length)
    if not n:
        nothing = np.zeros((model.depth + 1, 0, heads, d))
        return Explanation(v, (), (), (), np.zeros(0), nothing, nothing[:, :, 0, 0], unknown)
    # In steps of 16, so that texts of like length share a compilation; padding has the count 0.
    wide = -(-n // 16) * 16
    ids, counts = (np.pad(row[0, :n], (0, wide - n)) for row in (encoded.ids, encoded.counts))
    masses = jnp.asarray(counts, model.v.dtype)
    # A short review runs for some milliseconds, so that a program of it is compiled for seconds in vain.
    of_review = _run_quickly if wide <= _SHORT else _run
    run = jax.tree_util.tree_map(np.asarray, of_review(model, jnp.asarray(ids), masses))
    # (layers, words, heads, d).
    path, words = np.moveaxis(run.path[:, :, :n], 0, 2), tuple(fitted.vocabulary.decode(ids[:n]))
    # Share times projection of the embedding, summed over heads.
    parts = np.einsum("nh,nhd,hd->n", run.shares[:n], path[0], w)
    leading = [
        leader
        for head in range(heads)
        for leader in _led(model, words, path[:, :, head], run.first[head, :n], run.points[head, :n], head)
    ]
    return Explanation(
        float(parts.sum()) + v,
        words,
        tuple(int(count) for count in counts[:n]),
        tuple(leading),
        parts,
        path,
        np.einsum("knhd,hd->kn", path, w) + v,
        unknown,
        cut,
    )


class _Run(NamedTuple):
    """One review on its way: (heads, layers, n, d) places, (n, heads) shares, and the leaders of each head."""

    path: Any
    shares: Any
    first: Any
    points: Any


def _run_once(model: HardmaxClassifier, ids: Array, counts: Array) -> _Run:
    # All in one program, and one head after the other in a loop of it: many small programs take seconds to compile.
    def of_head(head: tuple[Array, Array, Array | None]) -> tuple[Array, Array, Array]:
        start, alpha, A = head
        layer = HardmaxLayer(alpha, A, masses=counts)  # pyright: ignore[reportArgumentType]
        # No layer: a bag of words, which stays where it is.
        path = iterate(layer, start, model.depth).xs if model.depth else start[None]
        led = leaders(start, layer, model.depth)
        return path, led.first, led.points

    heads = jnp.moveaxis(model.embedding[ids], 1, 0), model.alpha, model.A
    path, first, points = jax.lax.map(of_head, heads)
    return _Run(path, model.shares(ids[None], counts[None])[0], first, points)


_run, _run_quickly = eqx.filter_jit(_run_once), filter_jit_quickly(_run_once)


def _not_read(vocabulary: Vocabulary, text: str, length: int) -> tuple[tuple[str, ...], int]:
    """The words of a text that are not known, each once, n-grams left out; and how many known ones stand before the
    last `length`."""
    words = dict.fromkeys(word for word in vocabulary.options.words(text) if " " not in word)
    unknown = tuple(word for word in words if word not in vocabulary.ids)
    return unknown, max(0, len(vocabulary.encode(text)) - length)


def _led(
    model: HardmaxClassifier,
    words: tuple[str, ...],
    path: Float[np.ndarray, "layers n d"],
    first: Int[np.ndarray, " n"],
    points: Float[np.ndarray, "n d"],
    head: int,
) -> list[Leading]:
    """The leaders of one head, most followed first."""
    indices, points = np.flatnonzero(first >= 0), np.asarray(points, np.float64)
    if not len(indices):
        return []
    # At the last layer each word attends to one; followed to the end, the chain names its leader.
    ends = _ends(path[-1], None if model.A is None else np.asarray(model.A[head]))
    followed = np.linalg.norm(path[-1][ends][:, None] - points[indices][None], axis=2).argmin(axis=1)
    # A leader belongs to itself, also where another one is as near.
    followed[indices] = np.arange(len(indices))
    # The offset is split evenly over the heads, as each sees one part of the logit.
    w, offset = np.asarray(model.w[head], np.float64), float(model.v) / model.w.shape[0]
    found_leaders = []
    for k, i in enumerate(indices.tolist()):
        followers = tuple(words[j] for j in np.flatnonzero(followed == k).tolist() if j != i)
        distance = (float(points[i] @ w) + offset) / float(np.linalg.norm(w))
        found_leaders.append(Leading(words[i], followers, int(first[i]), distance, head))
    return sorted(found_leaders, key=lambda leader: -len(leader.followers))


def _ends(z: Float[np.ndarray, "n d"], A: Any) -> Int[np.ndarray, " n"]:
    """The end of each word's chain: from a word to the one that it attends to, until one that attends to itself, or n
    steps."""
    chosen = ((z if A is None else z @ A.T) @ z.T).argmax(axis=1)
    ends = np.arange(len(z))
    # At most n steps: a chain that is longer repeats a word.
    for _ in range(len(z)):
        ends = chosen[ends]
    return ends


def predict_many(fitted: Fitted, texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """For each of many texts its sentiment, probability, logit and leaders, without their paths.

    **Arguments:**

    - `fitted`: A trained classifier.
    - `texts`: Reviews.
    """
    check_fitted(fitted)
    texts = tuple(check_sequence(texts, "texts", str, "texts", least=0))
    if not texts:
        return []
    encoded = encode_reviews(
        Reviews(texts, np.zeros(len(texts), np.int8)), fitted.vocabulary, length=fitted.recipe.length
    )
    logits = predict_logits(fitted.model, encoded.ids, encoded.counts).tolist()
    # Leaders need no layer after the last here, hence the horizon.
    first = lead(fitted.model, encoded, horizon=fitted.model.depth).first
    predictions = []
    for row, logit in enumerate(logits):
        places = np.flatnonzero((first[row] >= 0).any(axis=1))
        predictions.append(
            {
                "sentiment": _sentiment(logit),
                "probability": _probability(logit),
                "logit": logit,
                "known_words": int(encoded.lengths[row]),
                "leaders": fitted.vocabulary.decode(encoded.ids[row, places]),
            }
        )
    return predictions


def _some(words: tuple[str, ...], most: int = 12) -> str:
    """The first of these words, and how many more there are."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _probability(logit: float) -> float:
    # 1 / (1 + e^{-logit}) without overflow for large negative logits.
    return float(np.exp(-np.logaddexp(0, -logit)))


def _sentiment(logit: float) -> str:
    return "positive" if logit > 0 else "negative"
