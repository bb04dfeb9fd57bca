"""What figures of the package's language model read: the passages that come with it, in word pieces."""

import numpy as np

from ... import probe, transformer


def passages(length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first word pieces of each passage of the package, and which of them are there, (passages, length) each."""
    tokenizer = transformer.load_tokenizer()
    # No special tokens: in training no token stood at the beginning of a text, which began anywhere.
    rows = [
        encoding.ids[:length] for encoding in tokenizer.encode_batch(probe.bundled_texts(), add_special_tokens=False)
    ]
    mask = np.arange(length)[None, :] < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask
