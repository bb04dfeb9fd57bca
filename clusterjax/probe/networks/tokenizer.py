"""The tokenizer of a folder, read and run by `transformers`.

Its files are first checked against their checksums and their forms, since transformers would allocate a word for each
of the extra ids that a file requests. Any later failure inside the library is turned into one ValueError that names the
folder.

Invariants: nothing is downloaded and no code of the folder is run; every returned id is below the number of words of
the network, so that no lookup is out of range.
"""

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..._files.json import Within, misfit, open_regular, read_json
from ..._files.sealed import check_beside
from ..._training.corpus import MOST_TOKENIZER, is_of_tokenizers


# Import of the library transformers without its notice about PyTorch, which is not needed here.
#
# Only its configurations and tokenizers are used. On import, transformers logs that its own models need PyTorch if that
# is not installed; this notice alone is suppressed, and every other message and warning passes.


# The first words of the notice, in transformers 5 and in 4.57.
_NOTICES = ("PyTorch was not found", "None of PyTorch")


def transformers_library() -> Any:
    """The module `transformers`.

    **Raises:**

    - `ImportError` if it is not installed.
    """
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_no_notice)
    try:
        return importlib.import_module("transformers")
    finally:
        logger.removeFilter(_is_no_notice)


def _is_no_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NOTICES)


_CONFIG = "tokenizer_config.json"
_FILES = ("tokenizer.json", _CONFIG, "spiece.model", "tokenizer.model", "vocab.txt")
_SUFFIXES = (".json", ".jsonl", ".jinja", ".model", ".txt")
# transformers creates a word for each of the extra ids of T5, whatever number is requested.
_FORM = {"extra_ids?": (None, Within(int, 0, 10**5)), "model_max_length?": (None, float)}


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder; None if it has none.

    **Raises:**

    - `ValueError` if the folder has a tokenizer that cannot be read.
    """
    files = [folder / name for name in _FILES if (folder / name).is_file()]
    if not files:
        return None
    # Imported here: importing transformers takes seconds, and most uses of `probe` need no tokenizer.
    transformers, settings = transformers_library(), {}

    for file in files:
        check_beside(file, "model", "fetch it again")
    with _refused(folder):
        # All files are checked, since transformers opens others too, and would wait for ever at a named pipe.
        for file in folder.iterdir():
            if file.suffix in _SUFFIXES and not file.is_dir():
                with open_regular(file) as opened:
                    if os.fstat(opened.fileno()).st_size > MOST_TOKENIZER:
                        raise ValueError(f"{file.name} has more than {MOST_TOKENIZER} bytes")
        if (folder / _CONFIG).is_file():
            settings = read_json(folder / _CONFIG, object, argument="it", remedy="mend it")
            wrong = misfit(settings, _FORM)
            if wrong is not None:
                raise ValueError(f"in {_CONFIG} {wrong}")
        # `AutoTokenizer` would take this class too, after it has imported PyTorch where that is installed.
        if settings.get("tokenizer_class") == "PreTrainedTokenizerFast":
            return transformers.PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def special_tokens(tokenizer: Any, folder: Any) -> int:
    """The number of special tokens that the tokenizer adds to each text."""
    with _refused(folder):
        return int(tokenizer.num_special_tokens_to_add())


def tokenize(tokenizer: Any, folder: Any, words: int, texts: Sequence[str], **options: Any) -> list[list[int]]:
    """The ids of each text, all of them below `words`.

    **Raises:**

    - `ValueError` if the tokenizer fails, or gives ids out of this range.
    """
    with _refused(folder):
        rows = tokenizer(texts, return_attention_mask=False, **options)["input_ids"]
        # An id beyond the embedding would give NaN at the first level.
        wrong = next((number for row in rows for number in row if not 0 <= number < words), None)
        if wrong is not None:
            raise ValueError(f"it gives the id {wrong}, and the network has {words} words")
    return rows


def _refused(folder: Any) -> contextlib.AbstractContextManager[None]:
    return tokenizer_refused(
        lambda words: ValueError(
            f"model must have a tokenizer that transformers reads, but that of {str(folder)!r} is refused ({words}); "
            "fetch it again."
        )
    )


@contextlib.contextmanager
def tokenizer_refused(error_of: Callable[[str], ValueError]) -> Iterator[None]:
    """Replaces any error of a broken tokenizer by `error_of` of the first line of its message."""
    try:
        yield
    # The Rust code of tokenizers panics with an exception that is not an `Exception`; others, such as
    # KeyboardInterrupt, are passed on.
    except BaseException as error:
        if not is_of_tokenizers(error):
            raise
        words = (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")
        raise error_of(words) from error
