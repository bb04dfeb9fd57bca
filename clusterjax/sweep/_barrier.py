"""A barrier between the processes of a sweep, which also raises an error of one process in all of them.

At the end of each part of the work all processes exchange one message, empty if the work succeeded, by an all-gather of
`jax.experimental.multihost_utils`. No process therefore waits for ever for a process that has failed.

Invariants: a single process exchanges nothing; if the work raises in one process, all processes raise at the same
barrier.
"""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np


_LONGEST = 2_000


@contextlib.contextmanager
def barrier() -> Iterator[None]:
    """A context at whose end all processes wait for each other; if one process raises an error, all of them do.

    **Raises:**

    - The error of this process; in processes without an error a `ValueError` with the message of the failed one.
    """
    error_here = None
    try:
        yield
    except Exception as error:
        error_here = error
    # The exchange also follows an error, since the other processes wait in it.
    if jax.process_count() > 1:
        messages = _exchange("" if error_here is None else str(error_here) or type(error_here).__name__)
        # The message names the first process that failed; a process that failed raises its own error below.
        if error_here is None and any(messages):
            k = next(k for k, text in enumerate(messages) if text)
            raise ValueError(f"process {k} of this sweep has stopped: {messages[k]}")
    if error_here is not None:
        raise error_here


def _exchange(message: str) -> list[str]:
    """The messages of all processes, in the order of their indices."""
    from jax.experimental import multihost_utils

    # An all-gather needs rows of equal length; a longer message is truncated.
    sent = np.frombuffer(message.encode()[:_LONGEST].ljust(_LONGEST, b"\0"), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), -1)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in received]
