"""Text to words: what is done with tags, case, negation and stop words before a review becomes tokens.

One pass of regular expressions and byte tables turns a text into letters, spaces and full stops; then words are
filtered, negated words marked up to the end of their clause, and n-grams appended. The options of the paper's released
code are `TextOptions.published`.

Invariants: the time is linear in the text, whatever it holds; the same text and options give the same words; the marks
of negation and clauses never reach the vocabulary as words of their own.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, final

from .._check import check_callable, check_flag, check_integer, check_sequence, check_text, shown


# NLTK's English list, its contractions split at their apostrophes.
STOP_WORDS = frozenset(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself "
    "it its itself they them their theirs themselves what which who whom this that these those am is are was were be "
    "been being have has had having do does did doing a an the and but if or because as until while of at by for with "
    "about against between into through during before after above below to from up down in out on off over under "
    "again further then once here there when where why how all any both each few more most other some such no nor not "
    "only own same so than too very s t can will just don should now d ll m o re ve y ain aren couldn didn doesn hadn "
    "hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn".split()
)
NEGATORS = frozenset("no nor not never cannot".split())
NEGATED = "not_"
MOST = 10**6  # of words, of letters in a row, of anything that is counted here

_LINK = re.compile(r"https?://\S+|www\.\S+")
# Without an end a tag reaches to the end of the text, so that this is linear; such a tag stays, see `_letters`.
_TAG = re.compile(r"<[^>]+>?")
_CONTRACTED_NOT = re.compile(r"[nN]['`’][tT]\b")
_FOREIGN_PUNCTUATION = re.compile(r"[^\w\s\x00-\x7f]")
_END = "."
_CLAUSE_ENDS = b'.,;:!?()"'
_DIGITS = b"0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@final
@dataclass(frozen=True)
class TextOptions:
    """How a text becomes words: runs of the letters a to z, in the order in which they are read.

    With the defaults "It wasn't that good.<br />AWFUL!" becomes `not_good`, `awful`. Digits, punctuation and letters
    with accents end a word, and `. , ; : ! ? ( ) "` end a clause. The first `negation_scope` words that are kept after
    a negator of their clause are marked, and the negator itself goes.

    **Arguments:**

    - `lower`: Whether words are put in lower case, before stop words are looked up.
    - `tag`: What takes the place of an HTML tag; `" . "` ends the clause, `" "` the word, `""` nothing.
    - `expand_not`: Whether n't becomes the word not: "didn't" gives `did not`, "can't" gives `ca not`.
    - `negation_scope`: How many words after a negator become `not_word`; 0 leaves negators to `stop_words`.
    - `negators`: The words that negate.
    - `stop_words`: The words that are left out.
    - `single_letters`: Whether words of one letter are kept.
    - `drop_links`: Whether what starts with http:// or www. is removed, before anything else.
    - `glue`: Whether digits and letters outside ASCII vanish, so that "café2go" is `cafgo`, instead of ending a
        word.
    - `longest_run`: The most times that a letter may follow itself, "soooo" with 2 is `soo`; 0 is no limit.
    - `ngrams`: The longest n-gram. With 2, each two neighbours of a clause, of the words that are kept, are a word too,
        after the second of them: "a waste of time" gives `waste`, `time`, `waste time`.
    - `lemmatise`: A function from a word to its lemma, called for each word kept; stop words are left out before and
        after it. It cannot be written to a file, so it is passed again when options are read.

    **Raises:**

    - `ValueError` if a value is not of its type, or a count is negative.

    The stop words are those of NLTK, the negated words are an old idea of sentiment analysis.
    """

    lower: bool = True
    tag: str = " . "
    expand_not: bool = True
    negation_scope: int = 3
    negators: Collection[str] = NEGATORS
    stop_words: Collection[str] = STOP_WORDS
    single_letters: bool = False
    drop_links: bool = False
    glue: bool = False
    longest_run: int = 0
    ngrams: int = 1
    lemmatise: Callable[[str], str] | None = None

    def __post_init__(self):
        for name in ("lower", "expand_not", "single_letters", "drop_links", "glue"):
            object.__setattr__(self, name, check_flag(getattr(self, name), name))
        for name in ("negation_scope", "longest_run"):
            number = check_integer(getattr(self, name), name, least=0, most=MOST, remedy="pass 0 to switch it off")
            object.__setattr__(self, name, number)
        ngrams = check_integer(self.ngrams, "ngrams", most=MOST, remedy="pass 1 for words alone")
        object.__setattr__(self, "ngrams", ngrams)
        check_text(self.tag, "tag", empty=True)
        for name in ("negators", "stop_words"):
            object.__setattr__(self, name, frozenset(check_sequence(getattr(self, name), name, str, "words", least=0)))
        if self.lemmatise is not None:
            check_callable(self.lemmatise, "lemmatise", "a function from a word to its lemma, or None")

    @classmethod
    def published(cls, lemmatise: Callable[[str], str] | None = None) -> "TextOptions":
        """The pipeline of the released code: case is kept, tags vanish without a space, no negation, letters stay.

        Two things differ. Its words go through NLTK's lemmatiser for nouns, which needs data of its own: pass
        `WordNetLemmatizer().lemmatize` for it. And its words are cut by NLTK's tokeniser, which after punctuation is
        gone differs from spaces in a handful of words ("cannot" is `can not`, "gonna" is `gon na`); here those stay
        whole. Its vocabulary counts all reviews, test part included, and keeps every word: `Vocabulary.build` of all
        texts with `min_count=1`.

        **Arguments:**

        - `lemmatise`: As in `TextOptions`.

        **Returns:**

        The options.

        ??? cite "Source"

            Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers and its role in sentiment
            analysis* (2407.01602), the code released with it.
        """
        return cls(
            lower=False,
            tag="",
            expand_not=False,
            negation_scope=0,
            single_letters=True,
            drop_links=True,
            glue=True,
            longest_run=2,
            lemmatise=lemmatise,
        )

    def words(self, text: str) -> list[str]:
        """The words of `text`, in its order; none if nothing is left of it.

        **Arguments:**

        - `text`: A review, as it was written.

        **Returns:**

        Words of letters; those that are negated start with `not_`, and the words of an n-gram have spaces between.
        """
        # Letters, then words, then marks: each step sees only what the one before left.
        words = self._kept(self._letters(check_text(text, "text", empty=True)).split())
        words = self._negated(words) if self.negation_scope else words
        return self._phrases(words) if self.ngrams > 1 else words

    def record(self) -> dict[str, Any]:
        """The options as plain values that JSON can hold; of `lemmatise` only whether there is one."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: _plain(name, value) for name, value in values.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, lemmatise: Callable[[str], str] | None = None) -> "TextOptions":
        """The options that `record` was made of.

        **Arguments:**

        - `record`: What `TextOptions.record` returned, perhaps by way of a JSON file.
        - `lemmatise`: The lemmatiser, if there was one.

        **Returns:**

        Options equal to those recorded.

        **Raises:**

        - `ValueError` if `record` has other names than the options have, or values of other types, or if `lemmatise`
            is missing or was not there before.
        """
        names = {item.name for item in fields(cls)}
        if not isinstance(record, Mapping) or set(record) != names:
            told = sorted(record) if isinstance(record, Mapping) else record
            raise ValueError(
                f"record must hold the options {sorted(names)}, but it holds {told}; pass what record() returned."
            )
        # Of a function only its presence was recorded.
        if bool(record["lemmatise"]) != (lemmatise is not None):
            there = "with" if record["lemmatise"] else "without"
            raise ValueError(
                f"lemmatise must be what it was, but the options were recorded {there} one and it is "
                f"{shown(lemmatise)}; pass {'the same lemmatiser' if record['lemmatise'] else 'None'}."
            )
        options = cls(**{**record, "lemmatise": lemmatise})
        if options.record() != {name: record[name] for name in names}:
            raise ValueError(f"record must hold options of their types, but it holds {record}; record() writes them.")
        return options

    def _letters(self, text: str) -> str:
        """`text` as letters and spaces and, if something looks for it, a full stop on its own per end of a clause."""
        if self.drop_links:
            text = _LINK.sub("", text)
        # Looking for one character is much faster than a regular expression that finds nothing.
        if "<" in text:
            text = _TAG.sub(lambda match: self.tag if match[0][-1] == ">" else match[0], text)
        if self.expand_not:
            text = _CONTRACTED_NOT.sub(" not ", text)
        if self.glue:
            # Punctuation of any script ends a word; what else is outside ASCII vanishes with the digits.
            text = _FOREIGN_PUNCTUATION.sub(" ", text)
            # Digits and letters outside ASCII vanish without a gap, as in the released code.
            plain = text.encode("ascii", "ignore").translate(self._table, _DIGITS).decode("ascii")
        else:
            # Every byte of a letter outside ASCII becomes a space.
            plain = text.encode("utf-8", "surrogatepass").translate(self._table).decode("ascii")
        if self.longest_run:
            plain = self._long_run.sub(lambda match: match[0][: self.longest_run], plain)
        return plain.replace(_END, f" {_END} ") if self._marks else plain

    def _kept(self, words: list[str]) -> list[str]:
        """`words` without those left out, as lemmas if these are asked for; with what `_negated` looks for."""
        # Sets that are made once for these options.
        left_out, marks = self._left_out, self._marks
        kept = [word for word in words if word not in left_out]
        if self.lemmatise is None:
            return kept
        # Stop words are looked for before and after, as in the released code.
        lemmas = [word if word in marks else self.lemmatise(word) for word in kept]
        return [word for word in lemmas if word not in left_out]

    def _negated(self, words: list[str]) -> list[str]:
        """`words` without negators, the first few after each marked, and without ends of clauses if none needs them."""
        marks, scope, left, phrases = self._marks, self.negation_scope, 0, self.ngrams > 1
        # Nothing to mark: most reviews that are short.
        if marks.isdisjoint(words):
            return words
        negated = []
        for word in words:
            if word in marks:
                # The end of a clause ends the scope; another negator begins it anew.
                left = 0 if word == _END else scope
                if phrases and word == _END:
                    negated.append(word)
            elif left:
                negated.append(NEGATED + word)
                left -= 1
            else:
                negated.append(word)
        return negated

    def _phrases(self, words: list[str]) -> list[str]:
        """`words` without ends of clauses, each followed by the n-grams that end with it."""
        phrases: list[str] = []
        start = 0
        for stop, word in enumerate(words):
            if word == _END:
                start = stop + 1
                continue
            phrases.append(word)
            # Bigrams before trigrams, each ending at this word; none reaches over the end of a clause.
            for first in range(stop - 1, max(start, stop + 1 - self.ngrams) - 1, -1):
                phrases.append(" ".join(words[first : stop + 1]))
        return phrases

    @cached_property
    def _marks(self) -> frozenset[str]:
        """The words, and the full stop, that `_negated` and `_phrases` look for; none if neither is asked for."""
        if self.negation_scope:
            return frozenset((*self.negators, _END))
        return frozenset((_END,)) if self.ngrams > 1 else frozenset()

    @cached_property
    def _left_out(self) -> frozenset[str]:
        letters = "" if self.single_letters else _LETTERS
        # Marks may be stop words; they are removed later, when their work is done.
        return frozenset((*self.stop_words, *letters)) - self._marks

    @cached_property
    def _table(self) -> bytes:
        """A table of 256 bytes for `bytes.translate`: what each byte is replaced by."""
        letters = _LETTERS.encode()
        table = bytearray(b" " * 256)
        for byte in letters:
            table[byte] = ord(chr(byte).lower()) if self.lower else byte
        # A table of 256 bytes: one `translate` does case, punctuation and ends of clauses.
        for byte in _CLAUSE_ENDS if self._marks else b"":
            table[byte] = ord(_END)
        return bytes(table)

    @cached_property
    def _long_run(self) -> re.Pattern[str]:
        return re.compile(rf"([A-Za-z])\1{{{self.longest_run},}}")


def _plain(name: str, value: Any) -> Any:
    if name == "lemmatise":
        return value is not None
    return sorted(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
