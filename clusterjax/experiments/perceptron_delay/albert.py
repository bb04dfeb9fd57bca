"""The feed-forward layer of the package's own ALBERT as a velocity, beside attention and random perceptrons.

The tokens of a text move on the unit sphere by dx/dt = P_x (attention(x) + perceptron(x)), one layer in time 1, the
norms left out. A network reads tokens of some length r, and its feed-forward is not homogeneous: what it adds to r x
turns x by P_x F(r x) / r, so that r is part of the model; it is the root mean square length of what enters the
feed-forward in the network. Controls are the trained matrices with rows, columns and signs at random, which keeps their
singular values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ... import probe
from ..._field import AbstractField, PerceptronField
from ..._random import generator
from ..._simulate import simulate
from ...probe.measures.controls import _special
from ...probe.measures.survey import encoded
from ...probe.measures.tally import Clustered, clustered_error
from ...probe.networks.block import Context
from ...probe.networks.layers import activation
from ..framework.ensemble import count_clusters
from ..framework.experiment import Settings
from ..framework.networks import model_of, spread
from ..framework.passages import articles_of


RADIUS, GATHERED = 0.3, 0.9
TS = np.linspace(0.0, 24.0, 49)
RTOL = 1e-3


@dataclass(frozen=True, eq=False)
class Flows:
    """Mean cosine and number of clusters of each text along each flow.

    **Attributes:**

    - `cosine`, `clusters`: By the name of the flow, (texts, times); of "random" (draws, times), means over texts.
    - `radius`, `fed`: The lengths of what attention and what the feed-forward reads in the network.
    - `speed`: At which the perceptron turns an embedded token, in radians per layer, root mean square.
    - `one_way`: The length of the mean direction that all tokens of all texts end in under the perceptron alone.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    cosine: dict[str, np.ndarray]
    clusters: dict[str, np.ndarray]
    radius: float
    fed: float
    speed: float
    one_way: float
    articles: np.ndarray

    def mean_of(self, name: str, values: np.ndarray) -> Clustered:
        """The mean over the texts of a flow, with its error over articles, or over draws of random perceptrons."""
        return clustered_error(values, None if name == "random" else self.articles)

    def until_gathered(self, name: str) -> np.ndarray:
        """The time at which the mean cosine of each text first exceeds 0.9, the end of the run if it never does."""
        # argmax of booleans is the first that holds, and 0 if none does.
        over = self.cosine[name] > GATHERED
        return np.where(over.any(axis=1), TS[over.argmax(axis=1)], TS[-1])


def measure_flows(seed: int, texts: int, tokens: int, draws: int, say: Callable[[str], None]) -> Flows:
    """All flows from the embedded tokens of the package's texts, in float32.

    **Arguments:**

    - `seed`: Of the order of shuffled tokens, and of the random perceptrons.
    - `texts`, `tokens`: How many texts, and to how many tokens they are cut.
    - `draws`: How many random perceptrons.
    - `say`: Is given each line of progress.
    """
    model, _ = model_of(Settings())
    block = model.network.blocks()[0]
    passages = spread(probe.bundled_texts(), texts)
    data = encoded(model, passages, tokens)
    shuffled = probe.shuffle_tokens(data, jr.fold_in(jr.key(seed), 5), _special(model))
    starts = {name: jnp.asarray(model.network.embed(jnp.asarray(one.token_ids)))
              for name, one in (("texts", data), ("shuffled", shuffled))}  # fmt: skip
    radius, fed = _lengths(model, starts["texts"])
    heads = probe.particle_field(model, radius)
    trained = perceptron_of(block, fed)
    cosine, clusters = {}, {}

    def run(name: str, perceptron: PerceptronField, of: str = "texts", share: float = 1.0) -> np.ndarray:
        say(f"ALBERT's tokens under {name}")
        xs = _run(jnp.asarray(share, jnp.float32) * heads + perceptron, starts[of], jnp.asarray(TS, jnp.float32))
        clusters[name] = np.asarray(count_clusters(xs, jnp.asarray(RADIUS, jnp.float32)), float)
        cosine[name] = _mean_cosine(np.asarray(xs, float))
        return np.asarray(xs[:, -1], float)

    # The same field with a perceptron that adds nothing: one compiled program serves all flows.
    run("attention", _silent(trained))
    alone = run("perceptron", trained, share=0.0)
    run("both", trained)
    run("both, shuffled", trained, "shuffled")
    run("both, shorter", _at_length(trained, radius / fed))
    drawn = []
    for draw in range(draws):
        # NumPy generators made from keys of jax: one seed decides all.
        rng = generator(jr.fold_in(jr.key(seed), 100 + draw))
        run("random", _scrambled(trained, rng))
        # Means over texts: the error of random perceptrons is over draws.
        drawn.append((cosine["random"].mean(0), clusters["random"].mean(0)))
    cosine["random"], clusters["random"] = (np.stack(part) for part in zip(*drawn, strict=True))
    # All tokens of all texts in one point have a mean of length 1.
    one_way = float(np.linalg.norm(alone.mean(axis=(0, 1))))
    return Flows(cosine, clusters, radius, fed, _speed(trained, starts["texts"]), one_way, articles_of(passages))


def perceptron_of(block: Any, radius: float) -> PerceptronField:
    r"""The feed-forward of a layer of ALBERT as a velocity on the unit sphere, for tokens of length `radius`.

    What is added to $r x$ turns x by $P_x F(r x) / r$. The norms are left out.
    """
    into, out = block.ffn, block.ffn_output
    return PerceptronField(
        # The layer reads r x and writes F(r x); on the unit sphere that is F(r x) / r.
        radius * into.kernel[...].T,
        out.kernel[...].T / radius,
        activation(block.activation),
        bias_in=into.bias[...],
        bias_out=out.bias[...] / radius,
    )


def _at_length(perceptron: PerceptronField, factor: float) -> PerceptronField:
    """The same perceptron for tokens of another length."""
    where = lambda field: (field.w_in, field.w_out, field.bias_out)
    # What is read is longer by the factor, what is written shorter by it.
    w_in, w_out, bias_out = where(perceptron)
    return eqx.tree_at(where, perceptron, (factor * w_in, w_out / factor, bias_out / factor))


def _silent(perceptron: PerceptronField) -> PerceptronField:
    """The same perceptron with nothing that it writes."""
    where = lambda field: (field.w_out, field.bias_out)
    return eqx.tree_at(where, perceptron, tuple(jnp.zeros_like(part) for part in where(perceptron)))


def _scrambled(perceptron: PerceptronField, rng: np.random.Generator) -> PerceptronField:
    """Another perceptron with the same singular values: rows and columns of its matrices in random order and with
    random signs, and its biases likewise, but for the signs of the thresholds."""

    def scramble(array: Any) -> Array:
        mixed = np.asarray(array)
        for axis in range(mixed.ndim):
            size = mixed.shape[axis]
            # Permuting and changing signs along an axis is an orthogonal map: singular values stay.
            last = np.moveaxis(mixed, axis, -1)[..., rng.permutation(size)] * rng.choice([-1.0, 1.0], size)
            mixed = np.moveaxis(last, -1, axis)
        return jnp.asarray(mixed, jnp.float32)

    where = lambda field: (field.w_in, field.w_out, field.bias_out)
    changed = eqx.tree_at(where, perceptron, tuple(scramble(part) for part in where(perceptron)))
    # Thresholds keep their signs: with others a neuron would be active where the trained one is silent.
    thresholds = rng.permutation(np.asarray(perceptron.bias_in))
    return eqx.tree_at(lambda field: field.bias_in, changed, jnp.asarray(thresholds, jnp.float32))


def _lengths(model: probe.Model, hidden: Float[Array, "texts n d"]) -> tuple[float, float]:
    """The root mean square length of what enters the layers, and of what enters their feed-forward."""
    block, mask = model.network.blocks()[0], jnp.ones(hidden.shape[:2], bool)
    square = lambda x: jnp.mean(jnp.sum(x * x, axis=-1))

    # Follows the network through its layers, to see how long tokens are where they are read.
    def layer(x: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        return block(x, mask, Context())[0], (square(x), square(block.after_attention(x, mask, Context())[0]))

    _, squares = jax.jit(lambda x: jax.lax.scan(layer, x, None, length=model.num_layers))(hidden)
    radius, fed = (float(np.sqrt(np.mean(part))) for part in squares)
    return radius, fed


@eqx.filter_jit
def _run(field: AbstractField, x0: Array, ts: Array) -> Float[Array, "texts times n d"]:
    controller = dfx.PIDController(rtol=RTOL, atol=RTOL)

    def run_text(x: Array) -> Array:
        return simulate(field, x, ts, solver=dfx.Bosh3(), stepsize_controller=controller, adjoint=dfx.ForwardMode()).xs

    return jax.vmap(run_text)(x0)


def _speed(perceptron: PerceptronField, x0: Float[Array, "texts n d"]) -> float:
    """The root mean square of the velocities."""
    velocity = jax.jit(lambda x: perceptron(0.0, x))(x0.reshape(-1, x0.shape[-1]))
    return float(np.sqrt(np.mean(np.sum(np.asarray(velocity) ** 2, axis=-1))))


def _mean_cosine(xs: Float[np.ndarray, "texts times n d"]) -> Float[np.ndarray, "texts times"]:
    """Of the pairs of tokens of a text, from the length of their sum."""
    n = xs.shape[2]
    # |sum x|^2 = n + sum over pairs of cosines, twice each.
    return (np.sum(xs.sum(axis=2) ** 2, axis=-1) - n) / (n * (n - 1))
