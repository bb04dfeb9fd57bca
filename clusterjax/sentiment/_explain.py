"""The explanation of the classification of a review: its leaders, their followers, and the path of each word.

A leader is a word that at some layer attends to itself alone (2407.01602). A follower belongs to the leader nearest to
the end of its chain of targets. Contributions are the shares of `HardmaxClassifier.shares` times <w, E_i>;
contributions and v add up to the logit exactly.

Invariants: a text without known words has the logit v, no leaders and empty arrays; JSON records contain plain numbers.
"""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.checks import check_integer, check_text
from .._dynamics.iterate import iterate
from ..hardmax import HardmaxLayer, leaders
from ._encode import encode_reviews
from ._loss import Fitted, check_fitted, probability_of, sentiment_of
from ._model import HardmaxClassifier
from ._reviews import Reviews
from ._vocabulary import Vocabulary


# Most of the time of a first explanation is spent by XLA on the optimisation of a program that runs for two
# milliseconds. These settings disable optimising passes of LLVM and fusion emitters, and compile all kernels as one
# module: the program then compiles in a fifth of the time, and its values are equal up to rounding errors.
_QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Up to this number of words the quickly compiled program is slower by at most 25 ms (four heads).
_SHORT = 128


@final
@dataclass(frozen=True)
class Leading:
    """A leader of one review, and the words that follow the leader.

    **Attributes:**

    - `word`: The word that leads.
    - `followers`: The words whose chains of targets end at the leader, in the order of the review.
    - `since`: The first layer at which the leader attends to itself alone.
    - `distance`: The signed distance of the leader from the hyperplane, positive on the positive side.
    - `head`: The number of the head.
    """

    word: str
    followers: tuple[str, ...]
    since: int
    distance: float
    head: int


@final
@dataclass(frozen=True, eq=False)
class Explanation:
    """The prediction of the classifier for one review, and its explanation.

    **Attributes:**

    - `logit`: The logit, which is positive for a positive review, and v if no word is known.
    - `words`, `counts`: The known words that were read, each once, and their counts.
    - `leaders`: The leaders with their followers, in decreasing number of followers; empty if no word is known.
    - `contributions`: The contribution of the embedding of each word to the logit; contributions and v sum to the logit
        exactly.
    - `path`: (layers, words, heads, d), the positions of the words before the first layer and after each layer.
    - `scores`: (layers, words), the logit of a review whose words all end at the position of the word; its sign is the
        side of the hyperplane.
    - `unknown`: The words of the text that are not in the vocabulary, each once, without n-grams.
    - `cut`: The number of known words of a long text that were not read, since only its last words are read.
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
        """The predicted probability that the review is positive."""
        return probability_of(self.logit)

    @property
    def sentiment(self) -> str:
        """The predicted label, `positive` or `negative`."""
        return sentiment_of(self.logit)

    def record(self) -> dict[str, Any]:
        """Return the explanation as a dictionary of values of JSON."""
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
        """Return a text table of the score of each word at each layer; the followers of a leader are listed below the
        leader.

        **Arguments:**

        - `most`: The largest number of words to show; the words of the first leaders are shown first.
        """
        most = check_integer(most, "most")
        depth = len(self.scores) - 1
        # The table shows at most nine layers, evenly spaced, including the first and the last.
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
        """The rows of the table: each leader and its followers, then the remaining words, each word once."""
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
    """Explain the prediction of the classifier for `text` by its leaders and the path of each word.

    After the last layer each word attends to a target, and the chain of targets of a follower ends at its leader.

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
    - `text`: A review, unprocessed.

    **Returns:**

    An `Explanation`; a text without known words has the logit v and no leaders.

    Source: 2407.01602, for the definition of leaders.
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
    # Lengths are rounded up to multiples of 16, so that texts of similar length share a compilation; padding has the
    # count 0.
    wide = -(-n // 16) * 16
    ids, counts = (np.pad(row[0, :n], (0, wide - n)) for row in (encoded.ids, encoded.counts))
    masses = jnp.asarray(counts, model.v.dtype)
    # A short review runs for milliseconds, so seconds of compilation for a faster program would be wasted.
    run = jax.tree_util.tree_map(np.asarray, _compiled(wide <= _SHORT)(model, jnp.asarray(ids), masses))
    path, words = np.moveaxis(run.path[:, :, :n], 0, 2), tuple(fitted.vocabulary.decode(ids[:n]))
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
    """The path, (heads, layers, n, d), the shares, (n, heads), and the leaders of each head, for one review."""

    path: Any
    shares: Any
    first: Any
    points: Any


def _run_once(model: HardmaxClassifier, ids: Array, counts: Array) -> _Run:
    # One program with a loop over heads compiles faster than many small programs, which take seconds.
    def of_head(head: tuple[Array, Array, Array | None]) -> tuple[Array, Array, Array]:
        start, alpha, A = head
        layer = HardmaxLayer(alpha, A, masses=counts)  # pyright: ignore[reportArgumentType]
        # Without layers (a bag of words) the words do not move.
        path = iterate(layer, start, model.depth).xs if model.depth else start[None]
        led = leaders(start, layer, model.depth)
        return path, led.first, led.points

    heads = jnp.moveaxis(model.embedding[ids], 1, 0), model.alpha, model.A
    path, first, points = jax.lax.map(of_head, heads)
    return _Run(path, model.shares(ids[None], counts[None])[0], first, points)


@functools.cache
def _compiled(short: bool) -> Callable[..., Any]:
    """`_run_once`, compiled quickly for a short review on a CPU, if this release of jaxlib knows the settings."""
    options: dict[str, Any] = {"compiler_options": _QUICKLY} if short and jax.default_backend() == "cpu" else {}
    try:
        # A compilation with an unknown setting is an error.
        jax.jit(lambda: 0, **options)()
    except jax.errors.JaxRuntimeError:
        options = {}
    return eqx.filter_jit(_run_once, **options)


def _not_read(vocabulary: Vocabulary, text: str, length: int) -> tuple[tuple[str, ...], int]:
    """The unknown words of a text, each once, without n-grams; the number of known words before the last `length`."""
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
    """The leaders of one head, in decreasing number of followers."""
    indices, points = np.flatnonzero(first >= 0), np.asarray(points, np.float64)
    if not len(indices):
        return []
    # The end of the chain of targets at the last layer determines the leader of a word.
    ends = _ends(path[-1], None if model.A is None else np.asarray(model.A[head]))
    followed = np.linalg.norm(path[-1][ends][:, None] - points[indices][None], axis=2).argmin(axis=1)
    # A leader belongs to itself, even if another leader is equally near.
    followed[indices] = np.arange(len(indices))
    # The offset is split evenly over the heads, since the logit is a sum over heads.
    w, offset = np.asarray(model.w[head], np.float64), float(model.v) / model.w.shape[0]
    found_leaders = []
    for k, i in enumerate(indices.tolist()):
        followers = tuple(words[j] for j in np.flatnonzero(followed == k).tolist() if j != i)
        distance = (float(points[i] @ w) + offset) / float(np.linalg.norm(w))
        found_leaders.append(Leading(words[i], followers, int(first[i]), distance, head))
    return sorted(found_leaders, key=lambda leader: -len(leader.followers))


def _ends(z: Float[np.ndarray, "n d"], A: Any) -> Int[np.ndarray, " n"]:
    """The end of the chain of targets of each word, after n steps."""
    chosen = ((z if A is None else z @ A.T) @ z.T).argmax(axis=1)
    ends = np.arange(len(z))
    # A chain of more than n steps repeats a word, so n steps suffice.
    for _ in range(len(z)):
        ends = chosen[ends]
    return ends


def _some(words: tuple[str, ...], most: int = 12) -> str:
    """The first `most` words, and the number of further words, as text."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
