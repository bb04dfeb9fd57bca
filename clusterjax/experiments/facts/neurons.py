r"""Single neurons that say the object: those whose values promote it most, silenced one by one at the last token.

Neuron m of layer l writes $a_m v_m$; it promotes word w by $a_m \langle v_m, u_w \rangle$, with u the unembedding, as
`transformer.key_value_memory` has it. Beside each of the neurons that promote the object most, of all layers, stands
another one of the same layer, drawn at random of those whose writing points most nearly as much towards the object: by
the alignment $\mathrm{sign}(a_m) \langle v_m, u_w \rangle / |v_m|$. Whoever promotes a word is missed where it is
asked for; the control asks whether these neurons are missed for more than they promote it by.

Source: Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Section 4.
"""

from typing import NamedTuple

import numpy as np

from ...probe.measures.knocked_out import Jobs, Prepared, answers_without
from .known import Facts


_NEAREST = 5  # of which one is drawn
_AT_ONCE = 64


class Neurons(NamedTuple):
    """Single neurons silenced at the last token.

    **Attributes:**

    - `layer`: Of each neuron, the most promoting first, (facts, neurons).
    - `promoting`, `random`: The change of the log probability of the object, (facts, neurons).
    - `promotion`: By how much each promotes the object, and the random one, (facts, neurons, 2).
    - `alignment`: The alignment of both, (facts, neurons, 2).
    """

    layer: np.ndarray
    promoting: np.ndarray
    random: np.ndarray
    promotion: np.ndarray
    alignment: np.ndarray


def neurons_of(ready: Prepared, facts: Facts, log_p: np.ndarray, many: int, seed: int) -> Neurons:
    """The neurons that promote each object most, and as many random ones."""
    network, rng = ready.network, np.random.default_rng(seed)
    blocks, order = network.blocks(), network.order()
    words = np.asarray(network.unembedding())[facts.answers[:, 0]]
    fired = np.moveaxis(np.asarray(ready.clean.fired), 0, 1)
    values = [np.asarray(blocks[block].neuron_values().kernel) for block in order]
    # (facts, layers, m)
    promotion = fired * np.stack([words @ of_layer.T for of_layer in values], axis=1)
    size = np.abs(fired) * np.stack([np.linalg.norm(of_layer, axis=1) for of_layer in values])
    alignment = promotion / np.where(size > 0, size, 1)
    chosen, drawn = choose(promotion, alignment, many, rng)
    log_p_without = np.full(2 * len(facts) * many, np.nan)
    numbers = np.stack([chosen, drawn]).ravel()
    text = np.tile(np.repeat(np.arange(len(facts)), many), 2)
    for layer in np.unique(chosen // promotion.shape[2]):
        here = np.flatnonzero(numbers // promotion.shape[2] == layer)
        # So many at a time, the last filled up with copies: one compiled program.
        for part in np.split(here, range(_AT_ONCE, len(here), _AT_ONCE)):
            filled = np.concatenate([part, np.full(_AT_ONCE - len(part), part[0])])
            of, last = text[filled], facts.lengths[text[filled]] - 1
            jobs = Jobs(of, last, last + 1, np.ones(_AT_ONCE, int), numbers[filled] % promotion.shape[2])
            log_p_without[part] = answers_without(ready, int(layer), jobs, facts.answers)[: len(part), 0]
    change = log_p_without.reshape(2, len(facts), many) - log_p[:, 0][None, :, None]
    of_both = lambda values: np.stack(
        [np.take_along_axis(values.reshape(len(facts), -1), of, axis=1) for of in (chosen, drawn)], axis=-1
    )
    return Neurons(chosen // promotion.shape[2], change[0], change[1], of_both(promotion), of_both(alignment))


def choose(
    promotion: np.ndarray, alignment: np.ndarray, many: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers layer * m + neuron of those that promote most in each fact, and of random ones as aligned.

    **Arguments:**

    - `promotion`, `alignment`: Of each neuron, (facts, layers, m).
    - `many`: How many of each fact.
    - `rng`: Draws.

    **Returns:**

    Two arrays, (facts, many). The random ones are none of the promoting ones, and each is there once.
    """
    facts, _, m = promotion.shape
    chosen = np.argsort(-promotion.reshape(facts, -1), axis=1, kind="stable")[:, :many]
    drawn = np.zeros_like(chosen)
    for i in range(facts):
        taken = set(chosen[i].tolist())
        for k, number in enumerate(chosen[i]):
            layer, neuron = divmod(int(number), m)
            nearest = np.argsort(np.abs(alignment[i, layer] - alignment[i, layer, neuron]), kind="stable")
            free = [int(other) for other in layer * m + nearest if int(other) not in taken][:_NEAREST]
            drawn[i, k] = free[int(rng.integers(len(free)))]
            taken.add(int(drawn[i, k]))
    return chosen, drawn
