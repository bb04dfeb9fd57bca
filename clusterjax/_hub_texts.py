"""Texts of the data sets of the hub on which trained networks are measured, C4 and WikiText, by the library datasets.

The data sets are streamed, so that a few thousand texts of C4 do not require its 300 GB. C4: Raffel et al.
(1910.10683), Section 2.2. WikiText: Merity et al. (1609.07843); its rows are paragraphs, or headings, which are
omitted.
"""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ._tables import MOST_BYTES, bytes_of, wanted


class HubTexts(NamedTuple):
    """A data set of the hub.

    **Attributes:**

    - `name`: The id of the data set.
    - `config`: The variant of the data set.
    - `split`: The split, such as "train".
    """

    name: str
    config: str
    split: str


# The id and the default variant of each data set, by the names that users may pass.
_KNOWN = {
    "allenai/c4": ("allenai/c4", "en"),
    "Salesforce/wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"),
    "wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"),
}
HUB_NAMES = tuple(_KNOWN)
_HEADING = re.compile(r"=( =)* .* (= )*=")


def hub_texts_of(path: str) -> HubTexts | None:
    """The data set with the name `NAME`, `NAME:VARIANT` or `NAME:VARIANT:SPLIT`; None if there is none."""
    name, *further = path.split(":")
    if name not in _KNOWN or len(further) > 2 or not all(further):
        return None
    given = dict(zip(("config", "split"), further, strict=False))
    known, config = _KNOWN[name]
    return HubTexts(known, given.get("config", config), given.get("split", "train"))


def read_hub_texts(of: HubTexts, most_texts: int, most_bytes: int = MOST_BYTES) -> list[str]:
    """The first texts of a data set, as many as the bounds allow.

    **Arguments:**

    - `of`: The data set.
    - `most_texts`: The largest number of texts.
    - `most_bytes`: The largest memory of the texts.

    **Raises:**

    - `ValueError` if the data set cannot be reached, or has no such variant or split.
    - `ImportError` if the library datasets is not installed.
    """
    datasets: Any = wanted("datasets", f"loading {of.name!r} from the hub")
    try:
        with _without_retries():
            rows = datasets.load_dataset(of.name, of.config, split=of.split, streaming=True)
            return _first(rows, most_texts, most_bytes)
    except Exception as error:  # the library raises errors of many types: no network, no such variant, no space
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ValueError(
            f"paths must be within reach, but {of.name!r} ({of.config}, {of.split}) could not be loaded "
            f"({reason[:200]}); check the network, or name a file."
        ) from error


def _first(rows: Iterable[Any], most_texts: int, most_bytes: int) -> list[str]:
    """The first texts in the rows of a data set that are neither headings nor blank."""
    texts, size = [], 0
    every = (str(row["text"]) for row in rows)
    for text in itertools.islice((text for text in every if text.strip() and not _is_heading(text)), most_texts):
        size += bytes_of([text])
        if size > most_bytes:
            break
        texts.append(text)
    return texts


@contextlib.contextmanager
def _without_retries() -> Iterator[None]:
    """Silence the line that the hub's client logs for each failed attempt, since the error reports the failure once."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _is_heading(text: str) -> bool:
    """True if a paragraph is a heading of WikiText, ` = Title = ` or ` = = Section = = `."""
    return _HEADING.fullmatch(text.strip()) is not None
