"""The interaction energy of the tokens at each level of a network, and its change by each part of each layer.

The energy grows along the softmax flow with V = B = B^T, and is largest where all directions coincide; whether it
grows in a trained network is a question of measurement.

Invariant: the changes by attention, feed-forward, norms and the remainder add up to the change of each layer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._base.checks import check_concrete, check_flag, check_number
from ..._base.numerics import normalise
from ..._base.summary import short, summary
from ..._observables import hemisphere, interaction_energy
from ..networks.batch import Encoded
from ..networks.block import blank
from ..networks.load import Model, check_model
from ..networks.network import scan_layers
from .survey import Average, average_of, check_surveyed, dtype_of, encoded, units_of
from .table import tabled


@tabled(
    "layer", energy="level", margin="level", change="layer", attention="layer", feed_forward="layer", norm="layer",
    remainder="layer", falls="layer",
)  # fmt: skip
class EnergyBudget(NamedTuple):
    """The result of `energy_budget`; each `Average` is over texts and keeps the value of each text.

    **Attributes:**

    - `energy`: The energy of the directions of the tokens, (levels,).
    - `change`: The energy after a layer minus the energy before it, (layers,).
    - `attention`, `feed_forward`, `norm`: The changes of the energy when the attention update is added, when the
        feed-forward update is added, and by the norms of the stream, including the last norm of a network, (layers,).
    - `remainder`: `change` minus these three: rounding, and a rescaling of the stream before a layer, (layers,).
    - `falls`: 1 for a text whose energy falls in the layer, 0 for others: the mean is the fraction of texts, (layers,).
    - `margin`: The largest margin by which the directions lie in an open hemisphere, (levels,); None if not requested.
    - `beta`: The inverse temperature of the energy.
    """

    energy: Average
    change: Average
    attention: Average
    feed_forward: Average
    norm: Average
    remainder: Average
    falls: Average
    margin: Average | None
    beta: float

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def energy_budget(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    beta: float = 1.0,
    margin: bool = False,
    units: Int[ArrayLike, " texts"] | None = None,
    length: int | None = None,
    batch_size: int = 8,
    say: Callable[[str], None] = lambda line: None,
) -> EnergyBudget:
    """The energy of the tokens at each level, and its changes by attention, feed-forward and norms in each layer.

    The energy is that of the directions of the tokens, $1/(2βn²) ∑_{i,j} exp(β⟨x_i, x_j⟩ / (|x_i||x_j|))$.

    The updates are added one after another, in the order of the network: the change by a part is the energy of the
    stream after its update is added minus the energy before. If the parts of a block run in parallel, the attention
    comes first. The result is meaningful only in comparison with controls, such as `randomise` and `shuffle_tokens`.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> budget = probe.energy_budget(model, probe.bundled_texts()[:4], length=32)
        >>> budget.attention.mean.shape
        (12,)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `beta`: The inverse temperature of the energy, positive.
    - `margin`: True computes the margins of the hemispheres by a quadratic program for each text and level.
    - `units`: The independent unit of each text, such as its article, for the errors; None makes each text a unit.
    - `length`, `batch_size`, `say`: As in `survey`.

    **Returns:**

    An `EnergyBudget`.

    **Raises:**

    - `ValueError` if `beta` is not positive, `units` is not one integer for each text, and in the cases of `survey`.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3 and Lemma 6.4.
    """
    check_surveyed(check_model(model), batch_size, None, say)
    beta = check_number(beta, "beta", above=0, most=80, remedy="pass 1, say: beyond 80 the energy overflows float32")
    check_flag(margin, "margin")
    check_concrete(units, "units")
    data = encoded(model, texts, length)
    unit_of_text = None if units is None else units_of(units, len(data.mask))
    form, state = nnx.split(model.network)
    scale, count = jnp.asarray(beta, dtype_of(model)), len(data.mask)
    parts: list[Any] = []
    for begin in range(0, count, batch_size):
        # Copies of the last text fill the last batch, so that all batches share one program.
        rows = np.minimum(np.arange(begin, begin + min(batch_size, count)), count - 1)
        batch = jnp.asarray(data.token_ids[rows]), jnp.asarray(data.mask[rows])
        measured, levels = _budget(form, state, *batch, scale, margin)
        margins = np.zeros((len(rows), 0))
        if margin:
            margins = np.array([
                [hemisphere(jnp.asarray(level[k][data.mask[row]])).margin for level in np.asarray(levels, np.float64)]
                for k, row in enumerate(rows)
            ])  # fmt: skip
        by_text = [np.moveaxis(np.asarray(part, np.float64), 0, 1) for part in measured]
        parts.append([part[: count - begin] for part in (*by_text, margins)])
        say(f"{min(begin + batch_size, count)} of {count} texts")
    energy, steps, margins = (np.concatenate(part) for part in zip(*parts, strict=True))
    change = np.diff(energy, axis=1)
    by_part = steps[..., 0], steps[..., 1], steps[..., 2]
    remainder = change - np.sum(steps, axis=-1)
    mean = lambda values: average_of(values, unit_of_text)
    attention, feed_forward, norm = (mean(part) for part in by_part)
    falls, margin_of = mean((change < 0).astype(float)), mean(margins) if margin else None
    return EnergyBudget(
        mean(energy), mean(change), attention, feed_forward, norm, mean(remainder), falls, margin_of, beta
    )


@eqx.filter_jit
def _budget(
    form: Any, state: Any, ids: Array, mask: Bool[Array, "batch n"], beta: Array, keep: bool
) -> tuple[tuple[Array, Array], Array | None]:
    """The energies, (levels, batch), their changes by attention, feed-forward and norms, (layers, batch, 3), and the
    streams, which are kept for the margins."""
    network = nnx.merge(form, state)
    context = network.shared_context(mask.shape[1], jnp.sum(mask, axis=1))
    energy_of = jax.vmap(lambda x, words: _energy(x, words, beta))

    def step(block: Any, hidden: Array, given: Any) -> tuple[Array, Any]:
        hidden = blank(hidden, mask)
        entered = block.enter(hidden)
        attended, _ = block.attend(block.read(0, entered), mask, context)
        with_heads = entered + block.added_by_heads(attended, given[0])
        with_both = after = middle = block.write(0, with_heads)
        if block.feed_forward is not None:
            with_both = middle + block.added(block.read(1, middle, entered), given[0])
            after = block.write(1, with_both)
        before, first, between, second, last = (
            energy_of(stream, mask) for stream in (entered, with_heads, middle, with_both, after)
        )
        changes = first - before, second - between, (between - first) + (last - second)
        return after, (energy_of(hidden, mask), jnp.stack(changes, axis=-1), hidden if keep else None)

    embedded = blank(network.embed(ids), mask)
    last, (levels, changes, streams) = scan_layers(network, step, embedded, mask.shape[1])
    finished = blank(network.finish(last), mask)
    final = energy_of(finished, mask)
    # The last norm of a network acts in its last level.
    changes = changes.at[-1, :, 2].add(final - energy_of(blank(last, mask), mask))
    streams = None if streams is None else jnp.concatenate([streams, finished[None]])
    return (jnp.concatenate([levels, final[None]]), changes), streams


def _energy(x: Float[Array, "n d"], words: Bool[Array, " n"], beta: Array) -> Float[Array, ""]:
    """The energy of the directions of the words of one text."""
    # Padding is zero, has no direction, and has no mass.
    unit = normalise(jnp.where(words[:, None], x, jnp.ones_like(x)))
    return interaction_energy(unit, beta, masses=words.astype(x.dtype))
