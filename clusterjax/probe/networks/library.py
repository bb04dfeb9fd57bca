"""The library transformers, imported without what it says of PyTorch, which nothing here needs.

Configurations and tokenizers are all that is used of it. While it is imported it logs that its own models need PyTorch
where that is not installed; this one notice is left out, and every other message and warning passes.
"""

import importlib
import logging
from typing import Any


# How the notice begins: in transformers 5, and in 4.57.
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
