"""Import of the library transformers without its notice about PyTorch, which is not needed here.

Only its configurations and tokenizers are used. On import, transformers logs that its own models need PyTorch if that
is not installed; this notice alone is suppressed, and every other message and warning passes.
"""

import importlib
import logging
from typing import Any


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
