"""Arrays of numbers as users have them, without x64: float64 numbers beyond float32, and the other order of bytes.

    python -m tests.doors.numbers             every public callable
    python -m tests.doors.numbers 8           every eighth
    python -m tests.doors.numbers 1 plot      every one of this module

A number that float32 cannot hold must be refused where it would become infinite, and numbers in the other order of
bytes must not change the result. Each line that is printed is a fault.
"""

import os
import sys
import tempfile
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.doors.good import MODULES
from tests.doors.rules import ANYTHING, ENDLESS, UNBOUNDED
from tests.doors.values import Hang, is_numeric
from tests.doors.walk import Door, alarm, doors, judge


# Arguments that accept a number beyond float32, by the reason why it does not become infinite.
KEPT = {
    "NumPy computes with it, in float64": """
        coarsen.t_end limit_shape.t LimitShape.outline.reach Survival.at.t Survival.restricted_mean.horizon lifetimes.ts
        Survival.restricted_mean_error.horizon survival.times sweep.restricted_mean.horizon
        plateaus.ts plateaus.values plateaus.tolerance plateaus.min_dwell effective_beta.query_key product_spectrum.left
        product_spectrum.right spectrum.matrix symmetric_part_spectrum.matrix wasserstein.x wasserstein.y
        hardmax.choose_leaders.condition sentiment.accuracy.logits phase.PhaseDiagram.cost.beta plot.WordRun.xs
        plot.animate.turn plot.relative_positions.beta MeanField.smoothed.time design.recover.tolerance
        design.sensitivity.tolerance design.steer.tolerance experiments.Cost.full experiments.Cost.quick
        experiments.parameter.default transformer.RotaryPositions.base
        transformer.SinusoidalPositions.base transformer.sinusoidal_positions.base probe.Comparison.exceeds.sigmas
        probe.controls.sigmas probe.FirstToken.apart.times probe.FirstToken.apart.sigmas Modes.memberships.rate
        non_normality.matrix probe.head_clusters.correlation probe.head_clusters.resampled
    """,
    "an earlier number serves, and it is not read": "hardmax.choose_leaders.alphas",
    "a number is compared with it, which is smaller": "Rodas5P.max_growth phase.GramRank.threshold",
    "what is divided by its root is zero to rounding": """
        transformer.Block.random.epsilon transformer.LayerNorm.epsilon transformer.LayerNorm.identity.epsilon
    """,
    "a training says by itself that its loss is not finite": """
        sentiment.Recipe.learning_rate sentiment.Recipe.clip sentiment.Recipe.smoothing sentiment.Recipe.noise
        sentiment.Recipe.alpha transformer.LanguageRecipe.learning_rate transformer.LanguageRecipe.embedding_rate
        transformer.LanguageRecipe.weight_decay probe.AlbertRecipe.learning_rate probe.AlbertRecipe.weight_decay
        probe.AlbertRecipe.spread
    """,
}


def swapped(good: Any) -> np.ndarray:
    array = np.array(good)
    return array.astype(array.dtype.newbyteorder("S"))


def beyond(good: Any) -> Any:
    """A good value in float64 whose last number is beyond float32."""
    if np.ndim(good) == 0:
        return 1e300
    array = np.array(good, np.float64)
    array.flat[-1] = 1e300
    return array


def is_floating(good: Any) -> bool:
    """True if a value is a Python float, or a list or array of floats that is not empty; a PRNG key is not."""
    if not isinstance(good, float | list | jax.Array | np.ndarray):
        return False
    dtype = good.dtype if hasattr(good, "dtype") else np.asarray(good).dtype
    return np.size(good) > 0 and bool(jnp.issubdtype(dtype, jnp.floating))


def faults(door: Door) -> list[str]:
    """The faults of one door, for each argument that is a number or an array of numbers."""
    kept, found, expected = set(" ".join(KEPT.values()).split()), [], None
    for argument, good in door.arguments.items():
        where = f"{door.name}.{argument}"
        if argument in ANYTHING or where in (*ENDLESS, *UNBOUNDED):
            continue
        # Floats of Python are float64 too.
        if is_floating(good):
            outcome = judge(door, argument, good, beyond)
            if outcome != ("accepted" if where in kept else "refused"):
                found.append(f"{where}, beyond float32: {outcome}")
        if is_numeric(good) and good.dtype.itemsize > 1 and np.ndim(good) and good.dtype.kind in "iuf":
            try:
                expected = leaves(door.call()) if expected is None else expected
            except ValueError:  # the door needs x64, as `phase.stationary` does
                continue
            try:
                with alarm(60):
                    same = equal(expected, leaves(door.call(**{argument: swapped(good)})))
            except (Hang, Exception) as error:
                found.append(f"{where}, in the other order of bytes: {type(error).__name__}: {error}")
            else:
                found += [] if same else [f"{where}, in the other order of bytes: another result"]
    return found


def leaves(out: Any) -> list[np.ndarray]:
    """The numbers of a result, apart from the seconds of a training."""
    kinds, found = jax.Array | np.ndarray | float, jax.tree_util.tree_leaves_with_path(out)
    return [np.asarray(leaf) for path, leaf in found if isinstance(leaf, kinds) and "seconds" not in str(path)]


def equal(ours: list[np.ndarray], others: list[np.ndarray]) -> bool:
    pairs = zip(ours, others, strict=True)
    return all(
        a.dtype == b.dtype and (a.dtype == object or np.array_equal(a, b, a.dtype.kind in "fc")) for a, b in pairs
    )


def main(every: str = "1", *modules: str) -> None:
    warnings.simplefilter("ignore")
    chosen = ["" if name == "clusterjax" else name for name in modules] or MODULES
    for door in [door for module in chosen for door in doors(module).values()][:: int(every)]:
        print("".join(f"{fault}\n" for fault in faults(door)), end="", flush=True)
    print("done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(*sys.argv[1:])
