"""The data of the package: a small trained ALBERT, and texts that it has not seen in training."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from ..._base.checks import check_concrete, check_key
from ..._files.json import MOST_BYTES, read_bounded
from ..._files.sealed import MODEL, SealedFile, check_beside
from ..._training.corpus import read_texts as read_texts
from .network import Network


BUNDLED = Path(__file__).parents[1] / "data"
NAME = "clusterjax-albert"
TEXTS = "texts.txt"
_REMEDY = "install clusterjax again"
_FILE = SealedFile("folder", None, 0, _REMEDY, what="model")


def bundled_texts() -> list[str]:
    """Returns passages of Wikipedia, one paragraph each, which the ALBERT of the package has not seen in training.

    The passages are from the test part of WikiText-2, under the licence CC BY-SA.

    ??? cite "Source"

        Merity et al., *Pointer sentinel mixture models* (1609.07843), Section 4.3.
    """
    check_beside(BUNDLED / TEXTS, "folder", _REMEDY)
    texts = read_bounded(BUNDLED / TEXTS, MOST_BYTES, "folder", _REMEDY).decode()
    return [line for line in texts.splitlines() if line]


def bundled_training() -> dict[str, Any]:
    """Returns a record of the training of the ALBERT of the package: its recipe, its losses, and the clustering of its
    tokens at snapshots during training.
    """
    return _FILE.unpack(BUNDLED / MODEL, {"training": dict})[0]["training"]


def bundled_start(key: PRNGKeyArray) -> Network:
    """The ALBERT of the package before training, with weights from another seed, for `initial` of `controls`.

    Positions are initialised as sinusoids, and the matrices that write to the hidden states are divided by the square
    root of twice the number of layers, so that random weights do not cluster the tokens as those of `transformers` do.

    **Arguments:**

    - `key`: PRNG key.

    **Returns:**

    A `Network`.

    **Raises:**

    - `ValueError` if `key` is not a PRNG key.

    ??? cite "Source"

        The scaling: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; the
        sinusoids: Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5.
    """
    check_key(key)
    check_concrete(key, "key")
    from .train import AlbertRecipe, _network  # imported here, since it imports optax, which the texts do not need

    # The stages do not concern the initialisation, and JSON has lists where the recipe has tuples.
    recipe = {name: value for name, value in bundled_training()["report"]["recipe"].items() if name != "stages"}
    return _network(AlbertRecipe(**recipe), int(jr.bits(key, dtype=jnp.uint32)) >> 1)
