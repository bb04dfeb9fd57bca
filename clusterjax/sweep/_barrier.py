"""A barrier between the processes of one sweep, which also spreads an error to all of them.

At the end of each part of the work all processes exchange one message, empty if the work succeeded, by an all-gather of
`jax.experimental.multihost_utils`. So no process waits without end for one that has failed.

Invariants: with one process nothing is exchanged; if the work raises in one process, it raises in all, each time at
the same barrier.
"""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np


_LONGEST = 2_000


@contextlib.contextmanager
def barrier() -> Iterator[None]:
    """A context after which all processes wait for each other; if it raises in one, it raises in all of them.

    **Raises:**

    - What was raised here; a `ValueError` with its words in the processes where nothing was.
    """
    error_here = None
    try:
        yield
    except Exception as error:
        error_here = error
    # Reached also after an error, since the other processes wait in the exchange.
    if jax.process_count() > 1:
        messages = _exchange("" if error_here is None else str(error_here) or type(error_here).__name__)
        # The first process that failed is named; the one that failed raises its own error below.
        if error_here is None and any(messages):
            k = next(k for k, text in enumerate(messages) if text)
            raise ValueError(f"process {k} of this sweep has stopped: {messages[k]}")
    if error_here is not None:
        raise error_here


def _exchange(message: str) -> list[str]:
    """The messages of all processes, in the order of their indices."""
    from jax.experimental import multihost_utils

    # Rows of one length, as an all-gather needs; a longer message is truncated.
    sent = np.frombuffer(message.encode()[:_LONGEST].ljust(_LONGEST, b"\0"), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), -1)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in received]
