"""The vocabulary: words and their ids, counted on the training part.

Ids are sorted by decreasing frequency, with ties in alphabetical order; 0 is padding, and 1 is the unknown word. The
file of a model holds the vocabulary as compressed JSON with the options for the conversion of texts to words.

Invariants: the vocabulary does not depend on the order of the texts; decoding of encoded words returns the known words.
"""

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Int

from .._base.checks import (
    check_choice,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_sequence,
    check_text,
)
from .._files.json import Within, decode, misfit
from .._files.sealed import BLANK, seal
from ._text import MOST, NEGATED, TextOptions


PADDING, UNKNOWN = 0, 1
MOST_UNPACKED = 2**28
_RESERVED = ("<pad>", "<unk>")
_FORMAT, _VERSION = "clusterjax vocabulary", 1
_FORM = {
    "sha256": str, "format": _FORMAT, "version": _VERSION, "words": [str], "counts": [Within(int, 0, 2**63)],
    "options": dict, "keep_unknown": bool, str: (),
}  # fmt: skip


@final
@dataclass(frozen=True)
class Vocabulary:
    """The words of a model: id 0 is padding, id 1 is `<unk>`, and `words[i]` has the id i + 2.

    Unknown words are dropped, like stop words, so that all kept words of a long review are known; with `keep_unknown`,
    unknown words become `<unk>`.

    **Arguments:**

    - `words`: The words, each once.
    - `counts`: The number of occurrences of each word.
    - `options`: The options for the conversion of texts to words.
    - `keep_unknown`: True replaces unknown words by `<unk>` instead of dropping them.

    **Raises:**

    - `ValueError` if there are no words, a word is repeated, or the number of counts is not that of words.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    options: TextOptions = TextOptions()
    keep_unknown: bool = False

    def __post_init__(self):
        object.__setattr__(self, "words", tuple(check_sequence(self.words, "words", str, "words")))
        counts = check_host_array(self.counts, "counts", shape=(None,), integers=True, least=0)
        object.__setattr__(self, "counts", tuple(counts.tolist()))
        check_instance(self.options, "options", TextOptions, "a TextOptions", "pass TextOptions()")
        object.__setattr__(self, "keep_unknown", check_flag(self.keep_unknown, "keep_unknown"))
        if len(self.counts) != len(self.words):
            raise ValueError(
                f"counts must be as many as words, but there are {len(self.counts)} for {len(self.words)} words; "
                "pass one for each."
            )
        # The reserved names already have ids.
        twice = [word for word, count in Counter((*self.words, *_RESERVED)).items() if count > 1]
        if twice:
            raise ValueError(
                f"words must hold each word once, but {twice[0]!r} is there twice or has an id; remove it."
            )

    @classmethod
    def build(
        cls,
        texts: Sequence[str],
        options: TextOptions = TextOptions(),
        *,
        min_count: int = 3,
        keep_unknown: bool = False,
        negations: bool = False,
    ) -> "Vocabulary":
        """Build the vocabulary of `texts`, sorted by decreasing frequency, with ties in alphabetical order.

        The result does not depend on the order of the texts. Pass the training part only: words from test reviews would
        leak information.

        **Arguments:**

        - `texts`: The reviews of the training part.
        - `options`: The options for the conversion of texts to words.
        - `min_count`: The smallest number of occurrences of a word of the vocabulary.
        - `keep_unknown`: As in `Vocabulary`.
        - `negations`: True adds the negation `not_word` of each word that has none yet, with the count 0, so that the
            negation of a known word is known. N-grams have no negation.

        **Returns:**

        The vocabulary.

        **Raises:**

        - `ValueError` if `texts` is not a sequence of texts (an iterator is refused, since it may be infinite),
            `min_count` is not a positive integer, or no word occurs `min_count` times.
        """
        check_integer(min_count, "min_count", remedy="pass 1 to keep every word")
        check_instance(options, "options", TextOptions, "a TextOptions", "pass TextOptions()")
        keep_unknown, negations = check_flag(keep_unknown, "keep_unknown"), check_flag(negations, "negations")
        counts: Counter[str] = Counter()
        for text in check_sequence(texts, "texts", str, "texts", least=0):
            counts.update(options.words(text))
        frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        if not frequent:
            raise ValueError(
                f"texts must hold a word {min_count} times, but of their {len(counts)} words none is seen as often; "
                "pass more texts or a smaller min_count."
            )
        if negations:
            known = {word for _, word in frequent}
            negated = {NEGATED + word for word in known if " " not in word and not word.startswith(NEGATED)}
            frequent += [(0, word) for word in sorted(negated - known)]
        return cls(tuple(word for _, word in frequent), tuple(-count for count, _ in frequent), options, keep_unknown)

    @property
    def size(self) -> int:
        """The number of ids, including padding and `<unk>`, which is the number of rows of an embedding."""
        return len(self.words) + len(_RESERVED)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: number for number, word in enumerate(self.words, len(_RESERVED))}

    @cached_property
    def negations(self) -> Int[np.ndarray, "pairs 2"]:
        """The id of each word that is in the vocabulary with its negation `not_word`, and the id of the negation, in
        increasing order of the latter.
        """
        negated = [word for word in self.words if word.startswith(NEGATED) and " " not in word]
        pairs = [(self.ids.get(word.removeprefix(NEGATED)), self.ids[word]) for word in negated]
        return np.array([pair for pair in pairs if pair[0] is not None], np.int32).reshape(-1, 2)

    def encode(self, text: str) -> list[int]:
        """The ids of the words of `text`, in reading order.

        **Arguments:**

        - `text`: A review, unprocessed.

        **Returns:**

        The list of ids, without padding; empty if the text has no known word and `keep_unknown` is False.
        """
        ids, words = self.ids, self.options.words(check_text(text, "text", empty=True))
        if self.keep_unknown:
            return [ids.get(word, UNKNOWN) for word in words]
        # No known word has the id 0, so `filter` drops exactly the unknown words.
        return list(filter(None, map(ids.get, words)))

    def encode_many(
        self, texts: Sequence[str], length: int = 256, keep: Literal["last", "first"] = "last"
    ) -> tuple[Int[np.ndarray, "reviews length"], Int[np.ndarray, " reviews"]]:
        """The ids of each text as one row, padded with zeros on the right.

        Dropped words do not count towards `length`. A text without known words is a row of zeros, of length 0.

        **Arguments:**

        - `texts`: The reviews.
        - `length`: The number of columns, and so the largest number of words of a row.
        - `keep`: `"last"` keeps the last words of a longer text, `"first"` the first words.

        **Returns:**

        The ids, (reviews, length), and the length of each text, both int32.

        **Raises:**

        - `ValueError` if `length` is not a positive integer, or `keep` is neither `"last"` nor `"first"`.
        """
        length = check_window(length, keep)
        texts = check_sequence(texts, "texts", str, "texts", least=0)
        ids, lengths = np.zeros((len(texts), length), np.int32), np.zeros(len(texts), np.int32)
        for row, text in enumerate(texts):
            known_ids = self.encode(text)
            known_ids = known_ids[-length:] if keep == "last" else known_ids[:length]
            ids[row, : len(known_ids)], lengths[row] = known_ids, len(known_ids)
        return ids, lengths

    def decode(self, ids: Iterable[Any]) -> list[str]:
        """The words of `ids`, without padding.

        **Arguments:**

        - `ids`: Integers, such as a row of `encode_many`.

        **Returns:**

        The list of words; the id 1 is `<unk>`.

        **Raises:**

        - `ValueError` if an id is out of the vocabulary.
        """
        names, words = (*_RESERVED, *self.words), []
        for number in check_host_array(
            ids, "ids", shape=(None,), integers=True, least=0, most=self.size - 1, remedy="pass ids of this model"
        ).tolist():
            if number != PADDING:
                words.append(names[number])
        return words

    def _content(self) -> bytes:
        """The JSON of the vocabulary with its options and a checksum."""
        record = {
            # The field is blank while the checksum is computed, and then filled with text of equal length.
            "sha256": BLANK,
            "format": _FORMAT,
            "version": _VERSION,
            "keep_unknown": self.keep_unknown,
            "options": self.options.record(),
            "words": self.words,
            "counts": self.counts,
        }
        return seal((json.dumps(record, ensure_ascii=False) + "\n").encode())

    def _packed(self) -> bytes:
        """The compressed bytes of `_content`, which are reproducible, since they contain no time."""
        return gzip.compress(self._content(), compresslevel=9, mtime=0)

    @classmethod
    def _unpack(cls, data: bytes) -> "Vocabulary":
        """The vocabulary of the bytes that `_packed` made; a `ValueError` says in a clause what is wrong with them."""
        record = decode(_unpacked(data))
        wrong = misfit(record, _FORM)
        if wrong is not None:
            raise ValueError(wrong)
        options = TextOptions.from_record(record["options"])
        return cls(tuple(record["words"]), tuple(record["counts"]), options, record["keep_unknown"])


def _unpacked(data: bytes) -> bytes:
    """Decompress gzip data to at most `MOST_UNPACKED` bytes, since a small file may expand to gigabytes."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            content = stream.read(MOST_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"no whole gzip file: {error}") from error
    if len(content) > MOST_UNPACKED:
        raise ValueError(f"more than {MOST_UNPACKED} bytes once it is unpacked")
    return content


def check_window(length: Any, keep: Any) -> int:
    """Return `length` if `length` and `keep` are valid; raise a `ValueError` otherwise."""
    check_choice(keep, "keep", ("last", "first"))
    return check_integer(length, "length", most=MOST, remedy="pass 256, or another")
