r"""What is measured of an LSTM beside a transformer: how alike their states are, along the text and along the layers,
what the gates do, and the best unit for sentiment.

The likeness of place t is the mean cosine of the state there to all states before it in the text: of the cell state
c_t, and of the last level of the residual stream. That of a level is the mean cosine of all pairs of tokens.

Invariants: both models have about as many parameters, and are trained by the same loop on the same rows; what is
measured are texts that neither was trained on; random weights are those of the recipes, from several seeds.

Source: Hochreiter, Schmidhuber, *Long short-term memory* (1997); *Transformers, part 2*, slides 10 to 14.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from ... import transformer
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.small_models import LENGTH, Corpus, corpus_of, parameters_of, rows_of, train_small
from ..framework.starts import keys_of, seed_of
from ..framework.units import Unit, best_units, streams


SEEN = 20_000
GATES = ("forget_gate", "input_gate", "output_gate")


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    steps: int = parameter(3000, "the steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(64, "the dimension of the stream, for four heads, and of words", least=8, most=1024, quick=16)
    layers: int = parameter(2, "the number of layers of the transformer", least=1, most=32)
    draws: int = parameter(3, "the number of networks of random weights of each kind", least=2, most=32, quick=2)
    texts: int = parameter(48, "the number of texts whose states are measured", least=4, most=1000, quick=16)
    labelled: int = parameter(
        1000, "the texts on which a unit is chosen, and as many others on which it is scored", least=20, quick=100
    )


@dataclass(frozen=True, eq=False)
class States:
    """What one model does to the texts, each with the texts along the first axis.

    **Attributes:**

    - `along_text`: The likeness of each place from the second on, (texts, n - 1).
    - `along_layers`: That of each level; of an LSTM those of words, cell state and hidden state, (texts, levels).
    - `lengths`: The length of the state at each place, (texts, n).
    - `gates`: The mean of each of `GATES` over the units at each place, (texts, 3, n); None for a transformer.
    - `loss`: The mean loss of each text, (texts,).
    """

    along_text: np.ndarray
    along_layers: np.ndarray
    lengths: np.ndarray
    gates: np.ndarray | None
    loss: np.ndarray


@dataclass(frozen=True, eq=False)
class Network:
    """One architecture: trained, and with random weights.

    **Attributes:**

    - `parameters`: How many.
    - `trained`, `random`: What they do to the texts.
    - `units`, `random_units`: The best unit of each kind.
    """

    parameters: int
    trained: States
    random: list[States]
    units: dict[str, Unit]
    random_units: list[dict[str, Unit]]


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `corpus`: What was read.
    - `lstm`, `transformer`: The two.
    - `off`: By how much the states miss $c_t = f_t c_{t-1} + i_t g_t$ and $h_t = o_t \\tanh c_t$, at most.
    """

    p: Parameters
    corpus: Corpus
    lstm: Network
    transformer: Network
    off: float


def units_for(d: int, layers: int) -> int:
    """How many units make an LSTM of about as many parameters as the layers of a transformer, 4 d hidden neurons each.

    Layers have 12 d^2 each and there are positions; a cell of m units has 4 m (d + m + 1), and m d read it out.
    """
    wanted = layers * (12 * d * d + 9 * d) + LENGTH * d + 2 * d
    many = np.arange(1, 8 * d * layers)
    return int(many[np.argmin(np.abs(4 * many * (d + many + 1) + many * d - wanted))])


def recipes_of(p: Parameters) -> dict[str, transformer.LanguageRecipe]:
    """How the two are trained."""
    same: dict[str, Any] = {
        "d": p.d, "heads": 4, "length": LENGTH, "steps": p.steps, "epoch_steps": max(1, p.steps // 16),
        "warm_up": p.steps // 10,
    }  # fmt: skip
    return {
        "lstm": transformer.LanguageRecipe(architecture="lstm", hidden=units_for(p.d, p.layers), **same),
        "transformer": transformer.LanguageRecipe(hidden=4 * p.d, layers=p.layers, **same),
    }


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train both, and measure them beside their controls."""
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.labelled)
    ids, present = rows_of(corpus.scored.texts, LENGTH)
    # Whole rows alone, so that all places have as many texts.
    ids = ids[present.all(axis=1)][: p.texts]
    seeds = [seed_of(key) for key in keys_of(settings.seed, p.draws)]
    found, off = {}, 0.0
    for name, recipe in recipes_of(p).items():
        say(f"training the {'LSTM' if name == 'lstm' else name}")
        model = train_small(corpus.seen, recipe, seed=seeds[0])[-1].model
        random = [recipe.model(seed) for seed in seeds]
        say(f"reading {len(ids)} texts, and {2 * p.labelled} for sentiment, with it and {p.draws} of random weights")
        units = [best_units(one, corpus.chosen, corpus.scored, LENGTH) for one in (model, *random)]
        found[name] = Network(
            parameters_of(model), states_of(model, ids), [states_of(one, ids) for one in random], units[0], units[1:]
        )
        off = max(off, recurrence_off(model, ids)) if name == "lstm" else off
    return Results(p, corpus, found["lstm"], found["transformer"], off)


def states_of(model: Any, ids: np.ndarray) -> States:
    """What a model does to whole rows of texts."""
    found: Any = _states(model, jnp.asarray(ids))
    gates = None if found[3] is None else np.asarray(found[3], float)
    along_text, along_layers, lengths, loss = (np.asarray(found[part], float) for part in (0, 1, 2, 4))
    return States(along_text, along_layers, lengths, gates, loss)


@eqx.filter_jit
def _states(model: Any, ids: Array) -> tuple[Any, ...]:
    def of_text(ids: Array) -> tuple[Any, ...]:
        if isinstance(model, transformer.LSTMLanguageModel):
            states = model.states(ids)
            levels = (model.embedding[ids], states.cell, states.hidden)
            state, gates = states.cell, jnp.stack([getattr(states, gate).mean(axis=1) for gate in GATES])
        else:
            levels = streams(model, ids, jnp.ones(ids.shape, bool))
            state, gates = levels[-1], None
        alike = [_cosines(level) for level in levels]
        n = len(ids)
        before = jnp.tril(jnp.ones((n, n), state.dtype), -1)
        along_text = jnp.sum(_cosines(state) * before, axis=1)[1:] / jnp.arange(1, n).astype(state.dtype)
        pairs = jnp.asarray(n * (n - 1) / 2, state.dtype)
        log_probs = jax.nn.log_softmax(model(ids)[:-1])
        loss = -jnp.take_along_axis(log_probs, ids[1:, None], axis=1).mean()
        along_layers = jnp.stack([jnp.sum(cosines * before) / pairs for cosines in alike])
        return along_text, along_layers, jnp.linalg.norm(state, axis=1), gates, loss

    return jax.vmap(of_text)(ids)


def _cosines(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    length = jnp.linalg.norm(x, axis=1, keepdims=True)
    unit = x / jnp.maximum(length, jnp.finfo(x.dtype).tiny)
    return jnp.matmul(unit, unit.T, precision="highest")


def recurrence_off(model: transformer.LSTMLanguageModel, ids: np.ndarray) -> float:
    """By how much the states of the first texts miss the equations of the cell, at most, in double precision."""
    off = 0.0
    for row in ids[:4]:
        s = jtu.tree_map(lambda part: np.asarray(part, np.float64), model.states(jnp.asarray(row)))
        kept = np.concatenate([np.zeros_like(s.cell[:1]), s.cell[:-1]])
        cell = s.forget_gate * kept + s.input_gate * s.candidate
        off = max(off, np.abs(cell - s.cell).max(), np.abs(s.output_gate * np.tanh(s.cell) - s.hidden).max())
    return float(off)
