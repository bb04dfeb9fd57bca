"""What the processes of one sweep agree on: that all are here, and that none has failed."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np


_LONGEST = 2_000


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A stretch of work after which all processes wait for each other; if it fails in one, it fails in all of them.

    **Raises:**

    - What was raised here; a `ValueError` with its words in the processes where nothing was.

    Source: this library.
    """
    failed = None
    try:
        yield
    except Exception as error:
        failed = error
    if jax.process_count() > 1:
        words = _exchange("" if failed is None else str(failed) or type(failed).__name__)
        if failed is None and any(words):
            k = next(k for k, text in enumerate(words) if text)
            raise ValueError(f"process {k} of this sweep has stopped: {words[k]}")
    if failed is not None:
        raise failed


def _exchange(words: str) -> list[str]:
    """What each process says."""
    from jax.experimental import multihost_utils

    sent = np.frombuffer(words.encode()[:_LONGEST].ljust(_LONGEST, b"\0"), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), -1)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in received]
