"""Conversion of text to words: tags, case, negation, stop words and n-grams.

Regular expressions and byte tables convert a text to letters, spaces and full stops. Words are then filtered, the first
words after a negator are marked up to the end of the clause, and n-grams are added. `TextOptions.published` has the
options of the released code of the paper.

Invariants: the time is linear in the length of any text; text and options determine the words; ends of clauses, and
negators if negation is marked, never become words.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, final

from .._base.checks import check_callable, check_flag, check_integer, check_sequence, check_text, shown


# The English list of NLTK, with contractions split at apostrophes.
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
# Words that negate and also have a sentiment of their own.
WEAK_NEGATORS = frozenset("hardly barely scarcely rarely seldom without nothing nobody none neither nowhere".split())
WIDE_NEGATORS = (
    NEGATORS
    | WEAK_NEGATORS
    | frozenset(
        "dont doesnt didnt isnt arent wasnt werent cant couldnt wont wouldnt shouldnt hasnt havent hadnt aint".split()
    )
)
# Words between a negator and the word that it negates: "not really good", "never seems to end".
_LIGHT = frozenset(
    "really quite particularly especially exactly entirely completely totally actually even ever always necessarily "
    "overly much many enough nearly remotely truly fully also yet seem seems seemed get gets got getting feel feels "
    "felt look looks looked think thinks thought say says said know find finds found believe make makes made give "
    "gives gave take takes took come comes came go goes going went want wants wanted try tries trying tried need "
    "needs see saw seen expect expected one ones thing things anything something someone anyone everything lot bit "
    "kind sort would could may might must let".split()
)
NEGATED = "not_"
MOST = 10**6  # the limit of all counts in the options

_LINK = re.compile(r"https?://\S+|www\.\S+")
# The optional end lets an unclosed tag match to the end of the text, so that the time is linear; `_letters` keeps
# unclosed tags.
_TAG = re.compile(r"<[^>]+>?")
_CONTRACTED_NOT = re.compile(r"[nN]['`’][tT]\b")
# These phrases contain a negator and negate nothing: "not only clever", "one of the best, if not the best".
_NOT_ONLY = re.compile(r"\bnot\s+(?:only|just|merely|simply)\b|\bif\s+not\s+the\b", re.IGNORECASE)
# A comparison after a negated verb is praise ("It could not be better", "I have never had a better pizza"), and without
# the negation it is a complaint ("It could be better", "I have seen better ones"). Some words in -er do not compare.
_NO_COMPARATIVE = (
    "clever|super|rather|over|under|other|another|ever|never|proper|bitter|tender|sober|eager|either|after"
)
_COMPARISON = re.compile(
    rf"\b(?:could|can|would)\s+(?P<beyond>(?:not|never|hardly|scarcely)\s+)?(?:be|have\s+been)\s+"
    rf"(?=(?:(?!(?:{_NO_COMPARATIVE})\b)\w{{3,}}er|worse|less|more)\b)"
    rf"|\b(?:have|has|had|ve)\s+(?P<unseen>(?:not|never|hardly|rarely|seldom)\s+)?\w+\s+(?:(?:an?|any)\s+)?"
    rf"(?=(?:better|worse|more)\b)",
    re.IGNORECASE,
)
# At the beginning of a clause these words negate the whole clause: "Nobody at the desk was rude."
_SUBJECT = re.compile(r"(?:^|(?<=\.))\s*(?:nothing|nobody|none|neither)\b", re.IGNORECASE)
_FOREIGN_PUNCTUATION = re.compile(r"[^\w\s\x00-\x7f]")
_END, _ALL = ".", "^"  # the end of a clause, and a negator of a whole clause
_CLAUSE_ENDS = b'.,;:!?()"'
_DIGITS = b"0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@final
@dataclass(frozen=True)
class TextOptions:
    """The options for the conversion of a text to words, which are runs of the letters a to z, in reading order.

    With the defaults "It wasn't that good.<br />AWFUL!" becomes `not_good`, `awful`. Digits, punctuation and letters
    with accents end a word, and `. , ; : ! ? ( ) "` end a clause. The first `negation_scope` kept words after a negator
    in its clause are marked, and the negator is removed.

    **Arguments:**

    - `lower`: True converts words to lower case before stop words are removed.
    - `tag`: The replacement of an HTML tag; `" . "` ends the clause, `" "` ends the word, and `""` ends neither.
    - `expand_not`: True replaces n't by the word not: "didn't" gives `did not`, and "can't" gives `ca not`.
    - `negation_scope`: The number of words after a negator that become `not_word`; with 0, negators are ordinary words.
    - `negators`: The words that negate.
    - `negation_rules`: True adds rules of grammar. Words such as "really" and "seem" in a scope are not marked and not
        counted: "not really good" gives `really`, `not_good`. Two negators in a row cancel: "not without charm", if
        `negators` include "without". The phrases "not only", "not just", "not merely", "not simply" and "if not the"
        negate nothing. Negators that also have a sentiment, such as "without", stay as words. At the beginning of a
        clause "nothing", "nobody", "none" and "neither" negate the whole clause: "Nobody here was rude". "Could not be
        better" is treated as praise, and "could be better" as a complaint. With False, a further negator restarts the
        scope.
    - `stop_words`: The words that are removed.
    - `single_letters`: True keeps words of one letter.
    - `drop_links`: True first removes links that start with http://, https:// or www.
    - `glue`: True deletes digits and letters outside ASCII, so that "café2go" is `cafgo`, instead of ending the word.
    - `longest_run`: The longest run of one letter: with 2, "soooo" becomes `soo`; 0 is no limit.
    - `ngrams`: The length of the longest n-gram. With 2, each pair of neighbouring kept words of a clause is added as a
        word after the second: "a waste of time" gives `waste`, `time`, `waste time`.
    - `lemmatise`: A function from a word to its lemma, which is called for each kept word; stop words are removed
        before and after the call. Functions are not written to files, so `lemmatise` must be passed again when options
        are read.

    **Raises:**

    - `ValueError` if a value has the wrong type, or a count is negative.

    The stop words are those of NLTK; the marking of negated words is a standard method of sentiment analysis.
    """

    lower: bool = True
    tag: str = " . "
    expand_not: bool = True
    negation_scope: int = 3
    negators: Collection[str] = NEGATORS
    negation_rules: bool = False
    stop_words: Collection[str] = STOP_WORDS
    single_letters: bool = False
    drop_links: bool = False
    glue: bool = False
    longest_run: int = 0
    ngrams: int = 1
    lemmatise: Callable[[str], str] | None = None

    def __post_init__(self):
        for name in ("lower", "expand_not", "negation_rules", "single_letters", "drop_links", "glue"):
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
        """The options of the released code: case and single letters are kept, tags are deleted without a space, and
        negation is not marked.

        Two details differ from the released code. The released code applies the lemmatiser of NLTK for nouns, which
        needs additional data: pass `WordNetLemmatizer().lemmatize` to apply it here. The released code also uses the
        tokeniser of NLTK, which after the removal of punctuation differs from a split at spaces in a few words
        ("cannot" becomes `can not`, "gonna" becomes `gon na`); these words stay whole here. The vocabulary of the
        released code counts all reviews, including the test part, and keeps every word, as `Vocabulary.build` of all
        texts with `min_count=1` does.

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
        """The words of `text`, in reading order.

        **Arguments:**

        - `text`: A review, unprocessed.

        **Returns:**

        The list of words, possibly empty; negated words start with `not_`, and spaces separate the words of an n-gram.
        """
        words = self._kept(self._letters(check_text(text, "text", empty=True)).split())
        words = self._negated(words) if self.negation_scope else words
        return self._phrases(words) if self.ngrams > 1 else words

    def record(self) -> dict[str, Any]:
        """The options as values of JSON; `lemmatise` is recorded as True or False, for its presence."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: _plain(name, value) for name, value in values.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, lemmatise: Callable[[str], str] | None = None) -> "TextOptions":
        """Restore the options from their record.

        **Arguments:**

        - `record`: The result of `TextOptions.record`, possibly read from a JSON file. An option that the record leaves
            out has its default.
        - `lemmatise`: The lemmatiser of the recorded options, or None.

        **Returns:**

        Options equal to the recorded options.

        **Raises:**

        - `ValueError` if `record` has a name that is not an option, or values of other types, or if the presence of
            `lemmatise` differs from the record.
        """
        names = {item.name for item in fields(cls)}
        if not isinstance(record, Mapping) or not set(record) <= names:
            content = sorted(record) if isinstance(record, Mapping) else record
            raise ValueError(
                f"record must hold the options {sorted(names)}, but it holds {content}; pass what record() returned."
            )
        # The record has only the presence of the function.
        recorded = bool(record.get("lemmatise"))
        if recorded != (lemmatise is not None):
            with_or_without = "with" if recorded else "without"
            raise ValueError(
                f"lemmatise must be what it was, but the options were recorded {with_or_without} one and it is "
                f"{shown(lemmatise)}; pass {'the same lemmatiser' if recorded else 'None'}."
            )
        options = cls(**{**record, "lemmatise": lemmatise})
        if options.record() != {**options.record(), **record}:
            raise ValueError(f"record must hold options of their types, but it holds {record}; record() writes them.")
        return options

    def _letters(self, text: str) -> str:
        """Convert `text` to letters, spaces and, if clauses matter, a separate full stop for each end of a clause."""
        if self.drop_links:
            text = _LINK.sub("", text)
        # The search for one character is much faster than a regular expression without a match.
        if "<" in text:
            text = _TAG.sub(lambda match: self.tag if match[0][-1] == ">" else match[0], text)
        if self.expand_not:
            text = _CONTRACTED_NOT.sub(" not ", text)
        if self.negation_rules:
            text = _NOT_ONLY.sub(" ", text)
            text = _COMPARISON.sub(lambda match: " " if match["beyond"] or match["unseen"] else " not ", text)
        if self.glue:
            # Punctuation of any script ends a word; other characters outside ASCII are deleted below.
            text = _FOREIGN_PUNCTUATION.sub(" ", text)
            # Digits and letters outside ASCII are deleted without a space, as in the released code.
            plain = text.encode("ascii", "ignore").translate(self._table, _DIGITS).decode("ascii")
        else:
            # Each byte of a letter outside ASCII becomes a space.
            plain = text.encode("utf-8", "surrogatepass").translate(self._table).decode("ascii")
        if self.longest_run:
            plain = self._long_run.sub(lambda match: match[0][: self.longest_run], plain)
        if self.negation_rules and self.negation_scope:
            plain = _SUBJECT.sub(f" {_ALL}", plain)
        return plain.replace(_END, f" {_END} ") if self._marks else plain

    def _kept(self, words: list[str]) -> list[str]:
        """`words` without stop words, as lemmas if `lemmatise` is given, and with the marks of `_negated`."""
        left_out, marks = self._left_out, self._marks
        remaining = [word for word in words if word not in left_out]
        if self.lemmatise is None:
            return remaining
        # Stop words are removed before and after lemmatisation, as in the released code.
        lemmas = [word if word in marks else self.lemmatise(word) for word in remaining]
        return [word for word in lemmas if word not in left_out]

    def _negated(self, words: list[str]) -> list[str]:
        """`words` without negators, with the first words after each negator marked; n-grams need ends of clauses."""
        marks, scope, remaining, phrases = self._marks, self.negation_scope, 0, self.ngrams > 1
        rules = self.negation_rules
        # Most short reviews have no marks.
        if marks.isdisjoint(words):
            return words
        negated, whole, weak = [], 0, False
        for word in words:
            if word == _END:
                remaining, weak = 0, False
                if phrases:
                    negated.append(word)
            elif word in marks:
                # A further negator restarts the scope. With `negation_rules`, a negator directly after another one,
                # whose scope is then still whole, or in the scope of a whole clause cancels the negation.
                if rules and remaining and (remaining == whole or whole > scope):
                    if weak:
                        negated.pop()
                    remaining, weak = 0, False
                else:
                    remaining = whole = len(words) if word == _ALL else scope
                    weak = rules and word in WEAK_NEGATORS
                    if weak:
                        negated.append(word)
            elif remaining and not (rules and word in _LIGHT):
                negated.append(NEGATED + word)
                remaining, weak = remaining - 1, False
            else:
                negated.append(word)
                weak = False
        return negated

    def _phrases(self, words: list[str]) -> list[str]:
        """`words` without ends of clauses, each word followed by the n-grams that end with the word."""
        phrases: list[str] = []
        start = 0
        for stop, word in enumerate(words):
            if word == _END:
                start = stop + 1
                continue
            phrases.append(word)
            # The n-grams that end at this word are added by length; they do not cross the end of a clause.
            for first in range(stop - 1, max(start, stop + 1 - self.ngrams) - 1, -1):
                phrases.append(" ".join(words[first : stop + 1]))
        return phrases

    @cached_property
    def _marks(self) -> frozenset[str]:
        """The negators and the full stop for `_negated` and `_phrases`; empty if neither is used."""
        if self.negation_scope:
            return frozenset((*self.negators, _END, _ALL))
        return frozenset((_END,)) if self.ngrams > 1 else frozenset()

    @cached_property
    def _left_out(self) -> frozenset[str]:
        letters = "" if self.single_letters else _LETTERS
        # Marks that are stop words are still needed by `_negated`, which removes them.
        return frozenset((*self.stop_words, *letters)) - self._marks

    @cached_property
    def _table(self) -> bytes:
        """The table for `bytes.translate`: the replacement of each of the 256 bytes."""
        letters = _LETTERS.encode()
        table = bytearray(b" " * 256)
        for byte in letters:
            table[byte] = ord(chr(byte).lower()) if self.lower else byte
        # One `translate` handles case, punctuation and ends of clauses.
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
