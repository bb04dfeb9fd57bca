"""The place of every head and layer of a network on the phase diagram of the particle model: beta and time.

A phase diagram has the flow of V = I and B = βI over time and beta. A layer is one unit of time, and V = λI for one
unit is V = I for the time λ: the time of a head is the leading eigenvalue of its V.

Invariants: the spectra do not depend on the texts, which set only the norm of the tokens; the numbers of one text do
not depend on the others; a head whose B is βI and whose V is λI is at exactly these numbers.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Int

from ..._base.checks import check_concrete, check_sequence, refusal
from ..._base.summary import short, summary
from ..._observables import product_spectrum
from ..measures.spectra import spectra_of
from ..measures.survey import Average, average_of, check_surveyed, encoded, survey, units_of
from ..measures.table import tabled
from ..networks.batch import Encoded
from ..networks.directions import norms_of
from ..networks.load import Model, load
from ..networks.recorded import Recorded
from .bridge import CURVE
from .field import particle_maps


@tabled(
    "?checkpoint layer head", beta="?checkpoint layer head", eigenvalue="?checkpoint layer head",
    rotation="?checkpoint layer head", layer_beta="?checkpoint layer", layer_eigenvalue="?checkpoint layer",
    layer_rotation="?checkpoint layer", radius="?checkpoint layer", checkpoint="checkpoint",
)  # fmt: skip
class Place(NamedTuple):
    """The result of `place`; each `Average` is over texts and keeps the value of each text. The result of
    `place_checkpoints` has a first axis of checkpoints.

    **Attributes:**

    - `beta`: The effective inverse temperature of each head, for unit vectors, (layers, heads).
    - `eigenvalue`, `rotation`: The real part of the leading eigenvalue of V, and its imaginary part, which is not
        negative and 0 unless the leading eigenvalues are a complex pair, for unit vectors and in one layer, (layers,
        heads).
    - `layer_beta`: The mean of `beta` over the heads of each layer, (layers,), since beta is defined for heads only.
    - `layer_eigenvalue`, `layer_rotation`: As `eigenvalue` and `rotation`, for the sum of V over the heads of each
        layer, which moves the tokens if all heads attend alike, (layers,).
    - `radius`: The norm of the tokens that enter each layer, (layers,): the root mean square of the words, or the
        median where norms act on the input of attention, as in `Bridge`.
    - `checkpoint`: The names of the checkpoints, (checkpoints,); None for one network.
    """

    beta: Average
    eigenvalue: Average
    rotation: Average
    layer_beta: Average
    layer_eigenvalue: Average
    layer_rotation: Average
    radius: Average
    checkpoint: np.ndarray | None = None

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def place(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    units: Int[ArrayLike, " texts"] | None = None,
    length: int | None = None,
    batch_size: int = 8,
    say: Callable[[str], None] = lambda line: None,
) -> Place:
    """The effective beta and the leading eigenvalue of V of every head and layer: its place on a phase diagram.

    Tokens are unit vectors, as in `particle_field`: the form B and the map V of a head include the norm r of the tokens
    and the scale s of the norm before attention. Where norms act on the residual stream (ALBERT, BERT),
    $B_h = r² W_Q W_K^T / √k$ and $V_h = (W_V W_O)^T$, so that beta grows with r. Where they act on the input of
    attention (T5, GPT-2, Llama), $B_h$ has $d diag(s) W_Q W_K^T diag(s)$ in place of $r² W_Q W_K^T$ and
    $V_h = √d (diag(s) W_V W_O)^T / r$, so that tokens of large norm move slowly. The effective beta is
    $‖½(B_h + B_h^T)‖_F/√d$, which is `effective_beta` for tokens of norm r: the β of the multiple βI of the identity
    with the same norm.

    `plot.place` draws the heads. The place is exact for a head with B = βI and V = λI. It does not show the sign of B,
    the other eigenvalues of V, biases, rotations and position biases; B and V have the rank k of a head, so that beta
    is larger in few directions. The sum over heads takes the eigenvalues of one (d, d) matrix for each block.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> found = probe.place(probe.load(), probe.bundled_texts()[:4], length=32)
        >>> found.beta.mean.shape, found.layer_eigenvalue.mean.shape
        ((12, 8), (12,))
        ```

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens; None for recorded arrays.

    **Other arguments:**

    - `units`: The independent unit of each text, such as its article, for the errors; None makes each text a unit.
    - `length`, `batch_size`, `say`: As in `survey`.

    **Returns:**

    A `Place`. Its errors are standard errors over texts, which differ in the norm of their tokens; a number that does
    not depend on this norm has the error 0 up to rounding.

    **Raises:**

    - `ValueError` if weights were not recorded, the heads have parts that no particle model has (see `particle_field`),
        `units` is not one integer for each text, and in the cases of `survey`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Section 6 and its code:
        the effective beta; *A mathematical perspective on transformers* (2312.10794), Sections 2 and 6: unit vectors
        and phase diagrams.
    """
    check_surveyed(model, batch_size, None, say)
    check_concrete(units, "units")
    order = norms_of(model)[2]
    data = encoded(model, texts, length)
    unit_of_text = None if units is None else units_of(units, len(data.mask))
    maps = particle_maps(model, np.ones(int(order.max()) + 1))
    spectra, d = spectra_of(maps), maps.query.shape[2]
    # The sum over heads of value @ output is one product of their factors side by side.
    whole = [product_spectrum(np.concatenate(value, axis=1), np.concatenate(output))[0]
             for value, output in zip(maps.value, maps.output, strict=True)]  # fmt: skip
    # The effective beta of the spectra is that of tokens of norm sqrt(d).
    beta, leading, of_layer = (part[order] for part in (spectra.beta / d, spectra.value[..., 0], np.array(whole)))
    levels = survey(model, data, CURVE, batch_size=batch_size, keep=("square", "median"), say=say).levels
    squares = levels["square" if maps.norm is None else "median"].values
    assert squares is not None
    r = np.sqrt(squares[:, :-1])
    # The maps above are those of tokens of norm 1; `particle_maps` has r^2 in B or 1/r in V.
    reading, writing = (r**2, np.ones_like(r)) if maps.norm is None else (np.ones_like(r), 1 / r)
    mean = lambda values: average_of(values, unit_of_text)
    betas, values, sums = reading[..., None] * beta, writing[..., None] * leading, writing * of_layer
    return Place(
        mean(betas), mean(np.real(values)), mean(np.imag(values)), mean(np.mean(betas, axis=2)), mean(np.real(sums)),
        mean(np.imag(sums)), mean(r),
    )  # fmt: skip


def place_checkpoints(
    checkpoints: Sequence[str | os.PathLike[str] | Model | Recorded],
    texts: Sequence[str] | Encoded | None = None,
    *,
    units: Int[ArrayLike, " texts"] | None = None,
    length: int | None = None,
    batch_size: int = 8,
    say: Callable[[str], None] = lambda line: None,
) -> Place:
    """The places of the heads of a network along its training: `place` for each checkpoint, with the same texts.

    Folders are read one after another, so that memory is that of one network.

    **Arguments:**

    - `checkpoints`: Folders or files that `load` reads, in the order of training, such as the folders `step0`,
        `step1000`, ... of a Pythia; or models, or recorded arrays with weights.
    - `texts`: As in `place`.

    **Other arguments:**

    - `units`, `length`, `batch_size`, `say`: As in `place`.

    **Returns:**

    A `Place` with a first axis of checkpoints, which have the names of their folders or models.

    **Raises:**

    - `ValueError` if there are no checkpoints, one differs from the first in its layers, heads or texts, and in the
        cases of `load` and `place`.
    """
    kinds = (str, os.PathLike, Model, Recorded)
    checked = check_sequence(checkpoints, "checkpoints", kinds, "folders of checkpoints, or models")
    places: list[Place] = []
    for checkpoint in checked:
        model = checkpoint if isinstance(checkpoint, Model | Recorded) else _read(checkpoint)
        places.append(place(model, texts, units=units, length=length, batch_size=batch_size, say=say))
        shapes = [(entry.beta.texts, *entry.beta.mean.shape) for entry in (places[0], places[-1])]
        if shapes[0] != shapes[1]:
            problem = f"{model.name!r} has {shapes[1]} and the first {shapes[0]} (texts, layers, heads)"
            raise refusal("checkpoints", "be of one network and the same texts", problem, "pass those of one training")
    names = [
        checkpoint.name if isinstance(checkpoint, Model | Recorded) else Path(checkpoint).name for checkpoint in checked
    ]
    stacked: Any = [_stacked(list(parts)) for parts in list(zip(*places, strict=True))[:-1]]
    return Place(*stacked, checkpoint=np.array(names))


def _read(folder: str | os.PathLike[str]) -> Model:
    try:
        return load(os.fspath(folder))
    except ValueError as error:
        problem = f"{os.fspath(folder)!r} is not ({error})"
        raise refusal("checkpoints", "each be what load reads", problem, "mend its path, or leave it out") from error


def _stacked(averages: list[Average]) -> Average:
    """The averages along a first axis, which follows the axis of texts in the values."""
    mean, spread, _, values = zip(*averages, strict=True)
    all_values: Any = values
    return Average(np.stack(mean), np.stack(spread), averages[0].texts, np.stack(all_values, axis=1))
