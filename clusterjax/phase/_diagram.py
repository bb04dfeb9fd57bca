"""One row of a phase diagram: the statistics of many systems, for one beta, at all save times.

Systems are drawn, integrated by `simulate` under `jax.vmap`, and measured in chunks. Invariants: random draws depend
only on the seed, on beta and on the index of the system, never on the chunks or on other betas; every statistic of a
system whose tokens are no longer unit vectors is NaN.
"""

import math
import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Real

from .._base.batching import FEW_DIMENSIONS, map_blocks, systems_at_once
from .._base.checks import (
    as_numbers,
    check_array,
    check_concrete,
    check_flag,
    check_float_dtype,
    check_host_array,
    check_instance,
    check_integer,
    check_number,
    check_path,
    check_room,
    check_scalar,
    check_sequence,
    refusal,
    shown,
)
from .._base.numerics import is_concrete, matmul
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike, Numbers, RealScalarLike, Scalar, Tokens
from .._dynamics.retract import Retract
from .._dynamics.simulate import simulate
from .._files.arrays import read_arrays, read_npy, read_npz
from .._files.json import read_regular
from .._model.attention import AbstractAttention, SoftmaxAttention, UnnormalisedAttention
from .._model.field import AbstractField, AttentionField
from .._model.mask import AbstractMask, FullMask, check_mask
from .._model.schedule import at_time
from .._model.space import AbstractSpace, Euclidean
from .._observables.similarity import close_fraction
from ..sweep._batches import digest
from ..sweep._labels import Axis, Variable, check_seed
from ..sweep._run import run
from ._laws import AbstractLaw, Identity


# The initial tokens of the systems of a phase diagram: drawn uniformly, given as an array, or read from a file.


class AbstractStarts(AbstractPart):
    """The tokens of all systems at time zero."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """The number of systems, the number of tokens per system, and their dimension."""

    @abstractmethod
    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        # Implementations use stream 0 of the seed and no beta, so that all rows have equal starts.
        """Unit tokens at time zero."""


class Uniform(AbstractStarts):
    """Independent uniform tokens on the sphere, which are shared by all betas.

    **Arguments:**

    - `samples`, `n`, `d`: The number of systems, the number of tokens per system, and their dimension.
    """

    samples: int
    n: int
    d: int

    def __check_init__(self):
        check_sizes(self.samples, self.n, self.d)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.samples, self.n, self.d

    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        x = draw_normal(jr.fold_in(jr.key(check_seed(seed)), 0), self.sizes, _starts_dtype(dtype))
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


def _given(x0: Numbers) -> Array:
    """`x0` as an array; only shape and dtype are checked if it is traced."""
    return check_array(x0 if not is_concrete(x0) else check_starts(x0, "x0"), "x0", shape=("samples", "n", "d"))


class Given(AbstractStarts):
    """Given tokens.

    **Arguments:**

    - `x0`: (samples, n, d); the tokens are normalised.
    """

    x0: Float[Array, "systems n d"] = eqx.field(converter=_given)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x0.shape  # pyright: ignore[reportReturnType]

    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        check_seed(seed)
        x = self.x0.astype(_starts_dtype(dtype))
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


def read_starts(path: Any, name: str = "starts") -> Float[np.ndarray, "samples n d"]:
    """Initial points from a `.npy`, or from a `.npz` or `.safetensors` of one array or of one named x0."""
    path = check_path(path, name)
    readers = {
        ".npy": lambda data: {"x0": read_npy(data)}, ".npz": read_npz,
        ".safetensors": lambda data: read_arrays(data).arrays,
    }  # fmt: skip
    if path.suffix not in readers:
        raise ValueError(f"{name} must be a .npy, .npz or .safetensors file, but it is {str(path)!r}; convert it.")
    if not path.is_file():
        raise ValueError(f"{name} must be a file that is there, but {str(path)!r} is not; mend the path.")
    # The readers parse the formats themselves, without pickle; any exception means that the file cannot be read.
    try:
        arrays = readers[path.suffix](read_regular(path))
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name} must be readable, but {str(path)!r} is not ({first}); write it anew.") from error
    if len(arrays) != 1 and "x0" not in arrays:
        raise ValueError(
            f"{name} must hold one array, or one called 'x0', but {str(path)!r} holds {sorted(arrays)}; rename one."
        )
    return check_starts(arrays["x0"] if "x0" in arrays else next(iter(arrays.values())), str(path))


def check_starts(x0: Any, name: str = "starts") -> Float[np.ndarray, "samples n d"]:
    """`x0` as an array (samples, n, d); raises a `ValueError` unless its rows can be initial points."""
    check_concrete(x0, name)
    array, rule = as_numbers(x0, name), "be floats of shape (samples, n, d) with n >= 2"
    if array is None:
        raise refusal(name, rule, f"they are {shown(x0)}", "pass one unit vector per token")
    x0 = np.asarray(array)
    # The axis of systems may be omitted for one system.
    x0 = x0[None] if x0.ndim == 2 else x0
    if x0.ndim != 3 or x0.size == 0 or x0.dtype.kind != "f" or x0.shape[1] < 2:
        raise refusal(name, rule, f"they are {x0.dtype} of shape {x0.shape}", "pass one unit vector per token")
    # A zero token has no direction.
    wrong = ~np.isfinite(x0).all(axis=2) | (np.abs(x0).max(axis=2) == 0)
    if wrong.any():
        system, token = (int(place[0]) for place in np.nonzero(wrong))
        entries = x0[system, token]
        listed = f"{entries}" if entries.size <= 8 else f"{entries[:8]} and so on"
        raise refusal(name, "be finite and not zero", f"token {token} of system {system} is {listed}", "mend it")
    return x0


def _starts_dtype(dtype: Any) -> Any:
    """The checked dtype, or the default of jax if it is None."""
    return jnp.result_type(float) if dtype is None else check_float_dtype(dtype)


def check_sizes(samples: Any, n: Any, d: Any, least: int = 1) -> tuple[int, int, int]:
    """The number of systems, tokens and coordinates, if arrays of that size fit in memory."""
    sizes = check_integer(samples, "samples", least=least), check_integer(n, "n", least=2), check_integer(d, "d")
    # The message names the largest of the three. Draws are flat arrays, and exist beside the tokens.
    count, largest = math.prod(sizes), max(range(3), key=lambda k: sizes[k])
    content = "the tokens of samples = {}, n = {}, d = {}".format(*sizes)
    num_bytes = 4 * count * jnp.result_type(float).itemsize
    check_room(
        sizes[largest], ("samples", "n", "d")[largest], num_bytes, content, longest=count, remedy="choose a smaller one"
    )
    return sizes


# The statistics of a phase diagram: one number for each system, for arrays of systems with the systems last.


class AbstractStatistic(AbstractPart):
    """A statistic that gives one number for each of many systems."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the statistic in the results."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A description of the statistic in one sentence."""

    @abstractmethod
    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        """The statistic of each system of unit tokens."""


class ClosePairs(AbstractStatistic):
    """The fraction of ordered pairs i ≠ j with $⟨x_i, x_j⟩$ > `cosine`: the published statistic.

    **Arguments:**

    - `cosine`: The threshold, in [-1, 1).

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    cosine: float = 0.999

    def __check_init__(self):
        check_number(self.cosine, "cosine", least=-1, below=1, remedy="pass the cosine of an angle")

    @property
    def name(self) -> str:
        return "close_pairs"

    @property
    def description(self) -> str:
        return f"share of ordered pairs with inner product above {self.cosine:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        # `vmap` needs systems first; on a CPU a rule of `close_fraction` moves them last again.
        x = jnp.transpose(check_systems(x), (2, 1, 0))
        return jax.vmap(close_fraction, (0, None))(x, jnp.asarray(self.cosine, x.dtype))


class GramRank(AbstractStatistic):
    """The number of eigenvalues of the matrix of inner products above `threshold`.

    **Arguments:**

    - `threshold`: A positive number.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    threshold: float = 1e-3

    def __check_init__(self):
        check_number(self.threshold, "threshold", above=0, remedy="pass 1e-3, say")

    @property
    def name(self) -> str:
        return "gram_rank"

    @property
    def description(self) -> str:
        return f"number of eigenvalues of the matrix of inner products above {self.threshold:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        x = check_systems(x)
        # X X^T and X^T X differ only by zero eigenvalues, so that the smaller of both suffices.
        few = gram(x) if x.shape[1] <= x.shape[0] else gram(jnp.swapaxes(x, 0, 1))
        # The threshold is absolute, as published; the eigenvalues of n unit tokens sum to n.
        return jnp.sum(jnp.linalg.eigvalsh(few) > self.threshold, axis=1).astype(x.dtype)


class ClusterRank(AbstractStatistic):
    """The rank of the matrix with ones where $⟨x_i, x_j⟩$ > `cosine`, else zeros: a count of clusters.

    **Arguments:**

    - `cosine`: The threshold, in [-1, 1).

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    cosine: float = 0.9999

    def __check_init__(self):
        check_number(self.cosine, "cosine", least=-1, below=1, remedy="pass the cosine of an angle")

    @property
    def name(self) -> str:
        return "cluster_rank"

    @property
    def description(self) -> str:
        return f"rank of the matrix of ones where inner products exceed {self.cosine:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        x = check_systems(x)
        near = (gram(x) > self.cosine).astype(x.dtype)
        # A token belongs to its own cluster, whatever rounding does to its norm.
        near = jnp.maximum(near, jnp.eye(x.shape[1], dtype=x.dtype)[None])
        # Absolute eigenvalues are the singular values; the threshold is that of `numpy.linalg.matrix_rank`.
        sizes = jnp.abs(jnp.linalg.eigvalsh(near))
        largest = jnp.max(sizes, axis=1, keepdims=True)
        return jnp.sum(sizes > largest * (x.shape[1] * jnp.finfo(x.dtype).eps), axis=1).astype(x.dtype)


def check_systems(x: Any) -> Float[Array, "d n systems"]:
    """`x` as an array, if it holds systems of at least two tokens.

    NaN tokens are accepted: `ClosePairs` then is NaN, but `GramRank` and `ClusterRank` are meaningless numbers, because
    comparisons with NaN are false. `PhaseDiagram` replaces every statistic of such a system by NaN.
    """
    x = check_array(x, "x", shape=("d", "n", "systems"), finite=False)
    if x.shape[1] < 2:
        raise refusal("x", "hold at least 2 tokens per system", f"its shape is {x.shape}", "pass (d, n, systems)")
    return x


def gram(x: Float[Array, "d n systems"]) -> Float[Array, "systems n n"]:
    """The inner products of the tokens of each system."""
    y = jnp.transpose(x, (2, 1, 0))
    return matmul(y, jnp.swapaxes(y, 1, 2))


# The schemes of the phase diagrams, each a choice of solver, steps and unit of time for `simulate`.
#
# `NormalisedEuler` is the published scheme, with time counted in steps, which floats represent exactly; `Adaptive` is
# the Dormand-Prince 5(4) pair with projection after each step. Invariants: a system that does not reach a save time
# is NaN from then on, without effect on other systems; the factor e^beta of unnormalised attention never overflows.


# The maximal number of steps of `NormalisedEuler` up to one time, and of attempted steps of `Adaptive`.
MOST_STEPS = 10**9
MOST_TRIES = 10**7

# The maximal number of evaluations of the field per system that `phase_diagram` accepts, by the estimate of the
# integrator. The number equals the maximal number of steps of `NormalisedEuler`, which evaluates once per step.
# `Adaptive` has this limit instead of 7 MOST_TRIES, because its estimate was up to 60 times too high in comparisons
# with runs, and runs that finish would be refused. A system that needs more than MOST_TRIES is NaN from then on.
MOST_EVALUATIONS = MOST_STEPS

# At a step h near 1 / eps, 8e6 in float32, rounding of x + h u loses x. No overflow occurs at that step, because a
# token is divided by its largest coordinate before its squares are summed.
LONGEST_STEP = 1e6


class AbstractIntegrator(AbstractPart):
    """A scheme for the systems of a phase diagram."""

    @abstractmethod
    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        """The tokens of one system at the save times `ts`, from unit tokens `x0` at time zero; NaN if not reached."""

    @abstractmethod
    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        """The cost of one system up to time `t`: an estimate of the number of evaluations of the field."""


class NormalisedEuler(AbstractIntegrator):
    """The published scheme: $x ← (x + hu) / |x + hu|$ with the drift u, not projected on the tangent space.

    The step h is `dt` for softmax attention and `dt` / $max(√β exp(β - 1/2), 1)$ for the unnormalised. The state at
    time t is the state after ceil(t / h) steps; at time zero it is the start, where the published code has the state
    after one step. The scheme is of first order: a comparison with `Adaptive` shows the effect of the step.

    **Arguments:**

    - `dt`: The step, positive and at most 1e6.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    dt: float = 0.1

    def __check_init__(self):
        check_number(self.dt, "dt", above=0, most=LONGEST_STEP, remedy="pass 0.1, say")

    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        log_step = jnp.log(jnp.asarray(self.dt, ts.dtype))
        if isinstance(attention, UnnormalisedAttention):
            # With h = dt / factor, h u = dt (u / factor), where u may overflow as e^beta but u / factor does not. The
            # offset is subtracted from the exponents, so that adding log_factor to it divides u by the factor. Hence
            # `_Steps` multiplies the field by dt, while one step advances the time by h.
            log_factor = _log_largest_velocity(at_time(attention.beta, 0.0), jnp).astype(ts.dtype)
            offset = at_time(attention.offset, 0.0, ts.dtype) + log_factor
            attention = eqx.tree_at(lambda a: a.offset, attention, offset)
            log_step = log_step - log_factor
        # Time is counted in steps, which floats represent exactly. A thousandth of a step absorbs rounding of times.
        counts = jnp.ceil(ts * jnp.exp(-log_step) - 1e-3)
        # Save times beyond the maximal number of steps, or beyond exact integers, are not reached. Their counts are
        # set to zero, and `cummax` keeps the counts non-decreasing.
        few = counts <= min(MOST_STEPS, 1 / float(jnp.finfo(ts.dtype).eps))
        counts = lax.cummax(jnp.where(few, counts, 0))
        field = _Steps(AttentionField(attention, value, Euclidean()), jnp.asarray(self.dt, ts.dtype), jnp.exp(log_step))
        # Each step has length one in this unit of time; `Retract` divides by the norm after each step.
        run = simulate(
            field, x0, _from_zero(counts), solver=Retract(dfx.Euler()), stepsize_controller=dfx.ConstantStepSize(),
            dt0=1.0, max_steps=MOST_STEPS, throw=False,
        )  # fmt: skip
        return jnp.where(few[:, None, None], run.xs[1:], jnp.nan)

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        # e^700 is near the largest float64, and larger estimates are as good as infinite.
        return t / self.dt * (math.exp(min(_log_largest_velocity(beta, np), 700)) if unnormalised else 1.0)


class Adaptive(AbstractIntegrator):
    """The flow on the sphere, integrated by the Dormand-Prince 5(4) pair, with separate steps for each system.

    Tokens are normalised after each step. A step is accepted if its estimated error is below `tolerance`, in the
    largest coordinate.

    **Arguments:**

    - `tolerance`: The error of one step, from 1e-14 to 1; None is 1e-6 in double precision and 1e-5 in single.

    A system is NaN from the time at which its steps become too small or too many.

    ??? cite "Source"

        Dormand and Prince, *A family of embedded Runge-Kutta formulae* (1980); diffrax implements the pair.
    """

    tolerance: float | None = None

    def __check_init__(self):
        if self.tolerance is not None:
            check_number(self.tolerance, "tolerance", least=1e-14, most=1, remedy="pass 1e-6, say, or None")

    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        double = ts.dtype == jnp.float64
        # rtol: coordinates of unit tokens are at most one and may be zero, so relative errors are meaningless. norm:
        # with the largest coordinate, unlike the root mean square, `tolerance` means the same for any n and d. dtmin:
        # at the last time t a step below eps t / 2 does not advance the time, but at earlier times shorter steps do,
        # hence the factor 1e-3; a system that needs shorter steps has failed.
        # first: the first attempted step, which the controller increases by at most a factor of four at a time.
        first = jnp.asarray(0.1, ts.dtype)
        if isinstance(attention, UnnormalisedAttention):  # unnormalised velocities are up to e^beta
            first = first * jnp.exp(-at_time(attention.beta, 0.0, ts.dtype))
        controller = dfx.PIDController(
            rtol=0.0, atol=self.tolerance or (1e-6 if double else 1e-5), norm=_largest, factormax=4.0,
            dtmin=1e-3 * jnp.finfo(ts.dtype).eps * ts[-1], force_dtmin=False,
        )  # fmt: skip
        run = simulate(
            AttentionField(attention, value), x0, _from_zero(ts), solver=Retract(dfx.Dopri5()),
            stepsize_controller=controller, dt0=first, max_steps=MOST_TRIES, throw=False,
        )  # fmt: skip
        return run.xs[1:]

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        # Seven evaluations per step: six, and one because `Retract` changes the end of the last step. Velocities vary
        # on a scale of 1 / beta. The rough estimate orders the points.
        return 7 * t * (1 + beta) * (math.exp(min(beta, 700)) if unnormalised else 1.0)


class _Steps(AbstractField):
    """A field with time counted in steps: `velocity` times the field at time `unit` times the count."""

    field: AbstractField
    velocity: Scalar
    unit: Scalar

    @property
    def space(self) -> AbstractSpace:
        return self.field.space

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        return self.velocity * self.field(self.unit * t, x, args)

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


def _log_largest_velocity(beta: Any, xp: Any) -> Any:
    """The logarithm of $max(√β exp(β - 1/2), 1)$, the largest velocity of unnormalised attention."""
    # The bound makes the logarithm finite at beta = 0; the outer maximum then gives zero.
    return xp.maximum(xp.log(xp.maximum(beta, 1e-30)) / 2 + beta - 0.5, 0)


def _largest(error: Array) -> Array:
    return jnp.max(jnp.abs(error))


def _from_zero(ts: Float[Array, " times"]) -> Float[Array, " more"]:
    """`ts` with a zero in front, since `simulate` saves at the start, which may be a save time as well."""
    # Callers drop the first entry. Equal neighbours are traced, so that `simulate` does not refuse them.
    return jnp.concatenate([jnp.zeros((1,), ts.dtype), ts])


def _save_times(ts: Numbers) -> Float[Array, " times"]:
    return check_times(ts, "ts")


class PhaseDiagram(AbstractPart):
    """One row of a phase diagram: a function of beta, which returns the statistics of many systems at all save times.

    For each statistic, a call returns the mean over the systems and its standard error, for example `close_pairs` and
    `close_pairs_error`, of shape (times,). Systems are processed in chunks, whose working memory fits in the cache;
    random draws depend neither on the chunks nor on the other points of a sweep. The statistics of a system whose
    tokens are no longer unit vectors, because a number overflowed, are NaN, and the point counts as failed.

    **Arguments:**

    - `starts`: The tokens at time zero, which are shared by all betas.
    - `ts`: Save times (times,), not negative and increasing.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `unnormalised`: True for unnormalised attention.
    - `statistics`: The statistics to measure.
    - `integrator`: The scheme, `NormalisedEuler` or `Adaptive`.
    - `seed`: The seed of the starts and laws.
    - `chunk`: The number of systems that run together; None chooses automatically.
    - `mask`: The mask, which is shared by all systems.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code.
    """

    starts: AbstractStarts
    ts: Float[Array, " times"] = eqx.field(converter=_save_times)
    query_key: AbstractLaw = Identity()
    value: AbstractLaw = Identity()
    unnormalised: bool = False
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),)
    integrator: AbstractIntegrator = NormalisedEuler()
    seed: int = 0
    chunk: int | None = None
    mask: AbstractMask = FullMask()

    def __check_init__(self):
        check_instance(self.starts, "starts", AbstractStarts, "Uniform or Given starts", "pass Uniform(2048, 32, 2)")
        for name, law in (("query_key", self.query_key), ("value", self.value)):
            check_instance(
                law, name, AbstractLaw, "a law of clusterjax.phase", "pass Identity() or Wigner(), for example"
            )
        check_flag(self.unnormalised, "unnormalised")
        check_statistics(self.statistics)
        check_integrator(self.integrator, self.ts.dtype)
        check_seed(self.seed)
        if self.chunk is not None:
            check_integer(self.chunk, "chunk")
        check_mask(self.mask)
        self.mask.check(self.starts.sizes[1])

    def __call__(self, beta: Float[Array, ""]) -> dict[str, Float[Array, " times"]]:
        # The standard error divides by count - 1.
        count = self.starts.sizes[0]
        if count < 2:
            raise refusal(
                "starts", "be of at least 2 systems, for the error", "there is 1", "call systems, or give more"
            )
        numbers = self.systems(beta)
        outputs = {}
        for statistic, values in zip(self.statistics, numbers, strict=True):
            mean = jnp.mean(values, axis=1)
            # Two passes are needed: the mean of squares less the square of the mean would cancel.
            spread = jnp.sum(jnp.square(values - mean[:, None]), axis=1)
            outputs[statistic.name] = mean
            outputs[f"{statistic.name}_error"] = jnp.sqrt(spread / (count * (count - 1)))
        return outputs

    def systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        """The statistics of every system at every save time."""
        return self._systems(check_scalar(beta, "beta", self.ts.dtype, least=0))

    @eqx.filter_jit
    def _systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        systems, n, d = self.starts.sizes
        # Streams 0, 1 and 2 are the starts, Q^T K and V. `LikeQueryKey` gets the matrices drawn for Q^T K.
        key = jr.key(self.seed)
        b = self.query_key.draw(jr.fold_in(key, 1), beta, systems, d, None)
        v = self.value.draw(jr.fold_in(key, 2), beta, systems, d, b)
        x = self.starts.tokens(self.seed, beta.dtype)
        # Matrices with a leading axis of systems are mapped over with the tokens; other matrices are shared.
        own = {name: matrix for name, matrix in (("b", b), ("v", v)) if matrix is not None and jnp.ndim(matrix) == 3}
        shared = {"b": b, "v": v}

        def chunk(x, own):
            run = lambda x, own: self._run(beta, x, **(shared | own))
            # xs is (systems, times, n, d), and is measured with times first; results are joined with systems first.
            xs = jax.vmap(run)(x, own)
            return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), self._measure(jnp.moveaxis(xs, 1, 0)))

        size = self.chunk or chunk_size(n, d, len(self.ts), beta.dtype)
        statistics = map_blocks(chunk, size, x, own)
        return tuple(jnp.moveaxis(numbers, 0, 1) for numbers in statistics)

    def _run(self, beta: Float[Array, ""], x0: Tokens, b: Any, v: Any) -> Float[Array, "times n d"]:
        kind = UnnormalisedAttention if self.unnormalised else SoftmaxAttention
        return self.integrator.run(kind(beta, query_key=b, mask=self.mask), v, x0, self.ts)

    def _measure(self, xs: Float[Array, "times systems n d"]) -> tuple[Float[Array, "times systems"], ...]:
        def at_one_time(x):
            # Statistics take (d, n, systems).
            x = jnp.transpose(x, (2, 1, 0))
            # Ranks of NaN tokens are numbers, because comparisons with NaN are false. This test marks such systems, and
            # also systems whose finite tokens are no longer unit vectors.
            unit = jnp.all(jnp.abs(jnp.sum(x * x, axis=0) - 1) < 0.5, axis=0)
            return tuple(jnp.where(unit, statistic(x), jnp.nan) for statistic in self.statistics)

        # Times are processed one by one, because some statistics need (systems, n, n).
        return jax.lax.map(at_one_time, xs)

    def cost(self, beta: float) -> float:
        """An estimate of the number of evaluations of the field that each system of a row takes."""
        return self.integrator.steps(
            check_number(beta, "beta", least=0), float(np.asarray(self.ts)[-1]), self.unnormalised
        )


def check_times(ts: Any, name: str) -> Float[Array, " times"]:
    """`ts` as an array, or a ValueError unless the times are one-dimensional, not negative and increasing."""
    array = check_array(ts, name, shape=("times",), least=0)
    if is_concrete(array) and np.any(np.diff(np.asarray(array)) <= 0):
        raise refusal(name, f"increase in {array.dtype}", "two neighbours do not", "sort them, each once")
    return array


def check_integrator(integrator: Any, dtype: Any) -> None:
    """Raise a ValueError unless `integrator` is a scheme whose step or tolerance `dtype` resolves."""
    check_instance(integrator, "integrator", AbstractIntegrator, "NormalisedEuler or Adaptive", "pass one of these")
    eps = float(jnp.finfo(dtype).eps)
    # The bound is ten machine epsilons: with a shorter step, x + h u leaves most coordinates unchanged.
    least = {Adaptive: ("tolerance", eps), NormalisedEuler: ("dt", 10 * eps)}
    name, bound = least.get(type(integrator), ("", 0.0))
    value = getattr(integrator, name, None)
    if value is not None and value < bound:
        rule = f"have a {name} that {dtype} resolves"
        raise refusal("integrator", rule, f"it is {value:g}", f"pass {bound:.1e} or more, or float64")


def check_statistics(statistics: Any) -> tuple[AbstractStatistic, ...]:
    """`statistics`, if it holds at least one statistic, and each only once."""
    checked = check_sequence(statistics, "statistics", AbstractStatistic, "statistics of clusterjax.phase")
    if len({statistic.name for statistic in checked}) < len(checked):
        names = ", ".join(statistic.name for statistic in checked)
        raise refusal("statistics", "be at least one, each once", f"they are {names}", "mend the list")
    return tuple(checked)


def chunk_size(n: int, d: int, times: int, dtype: Any) -> int:
    """The number of systems that run together, so that their saved states and stages stay in the cache of a core."""
    # The memory holds the saved states, and about 16 arrays of the size of a state for the stages of the solver.
    bytes_each = n * d * (16 + times) * jnp.dtype(dtype).itemsize
    # An accelerator computes all pairs of a chunk at once, and gets about a gigabyte of scores.
    if jax.default_backend() != "cpu":
        return max(64, 2**30 // (bytes_each + n * n * jnp.dtype(dtype).itemsize))
    return systems_at_once(n * n) if d <= FEW_DIMENSIONS else max(4, 2 ** int(math.log2(max(1, 2**21 // bytes_each))))


# `phase_diagram`: a sweep of `PhaseDiagram` over beta, with a store that can be resumed.
#
# Every argument is checked before compilation. Each beta is one point of the sweep; `PhaseDiagram.cost` tells the sweep
# which points take about equally long. Invariant: the store of a sweep identifies its arguments, so that a resumed run
# has equal arguments.


def phase_diagram(
    betas: Real[ArrayLike, " betas"],
    times: Real[ArrayLike, " times"],
    *,
    n: int = 32,
    d: int = 2,
    samples: int = 2048,
    unnormalised: bool = False,
    query_key: AbstractLaw = Identity(),
    value: AbstractLaw = Identity(),
    starts: Numbers | None = None,
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),),
    integrator: AbstractIntegrator = NormalisedEuler(),
    mask: AbstractMask = FullMask(),
    dtype: DTypeLike | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
    batch_size: int = 1,
) -> xr.Dataset:
    r"""The clustering of systems of n tokens at each time, for each beta, as defined by the published code.

    Each system has its own initial tokens, uniform on the sphere unless given, and shared by all betas. Each beta is
    one point of the sweep, so that a run with a `store` loses only the rows in progress when it is killed.

    !!! example

        ```python
        >>> from clusterjax import phase
        >>> diagram = phase.phase_diagram([1.0, 5.0], [0.0, 2.0, 20.0], n=4, d=8, samples=4, progress=False)
        >>> dict(diagram.sizes)
        {'beta': 2, 't': 3}
        >>> share = diagram.close_pairs.sel(beta=1.0)  # of the pairs whose inner product exceeds 0.999
        >>> bool(share[0] < 0.1), bool(share[-1] > 0.9)
        (True, True)
        ```

    **Arguments:**

    - `betas`: Inverse temperatures (betas,), not negative.
    - `times`: Save times (times,), not negative and increasing.

    **Other arguments:**

    - `n`, `d`, `samples`: The number of tokens per system, their dimension, and the number of systems.
    - `unnormalised`: True for unnormalised attention.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `starts`: Initial points (samples, n, d), or (n, d) for one system, which also determine the three sizes.
    - `statistics`: The statistics that are measured over the systems.
    - `integrator`: The published `NormalisedEuler`, or `Adaptive`.
    - `mask`: The mask; `CausalMask()` gives causal attention.
    - `dtype`: The dtype of the simulation; None is the default of jax.
    - `seed`: The seed of the starts and laws.
    - `store`, `resume`, `devices`, `progress`: As for `run`; without `devices` a CPU processes one beta per core at a
        time.
    - `batch_size`: The number of betas that a device processes together: 1 on a CPU, more if memory permits.

    **Returns:**

    An `xarray.Dataset` over (beta, t) with mean and standard error of each statistic, for example `close_pairs` and
    `close_pairs_error`; the arguments are in its attributes.

    **Raises:**

    - `ValueError` if an argument is invalid, or one system would take more than 1e9 evaluations of the field.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code; at time zero the state is the start here, where that code has the state after one step.
    """
    dtype = _dtype(dtype)
    betas, times = _numbers(betas, "betas", dtype), _numbers(times, "times", dtype)
    # Times are compared in the dtype of the run, where times that differ in float64 may be equal.
    check_times(times.astype(dtype), "times")
    # Betas must differ, because a beta identifies its point in the store.
    if len(np.unique(betas)) < len(betas):
        raise refusal("betas", "be there once each", "two of them are equal", "pass numpy.unique of them")
    samples, n, d = check_sizes(samples, n, d, least=2)
    statistics = check_statistics(statistics)
    if starts is None:
        start = Uniform(samples, n, d)
    else:
        given = check_starts(starts)
        if len(given) < 2:
            raise ValueError("starts must be of at least 2 systems, for the error, but there is 1; give more.")
        with jax.ensure_compile_time_eval():
            start = Given(jnp.asarray(given, dtype))
    # Under a transformation of jax the arrays would be traced, and no digest could be made of them.
    with jax.ensure_compile_time_eval():
        moments = jnp.asarray(times, dtype)
    diagram = PhaseDiagram(start, moments, query_key, value, unnormalised, statistics, integrator, seed, mask=mask)
    # The largest beta takes the most evaluations of the field, for either attention.
    evaluations = diagram.cost(betas.max())
    if not evaluations <= MOST_EVALUATIONS:
        raise ValueError(
            f"betas must leave fewer than {MOST_EVALUATIONS:.0e} evaluations of the field for each system, but "
            f"beta = {betas.max():g} takes {evaluations:.1e}; take smaller ones, or shorter times."
        )
    # Two variables over time for each statistic: the mean over the systems and its standard error.
    variables = {}
    for statistic in statistics:
        coords = {"t": times}
        variables[statistic.name] = Variable(("t",), coords, description=statistic.description)
        words = f"standard error of {statistic.name} over the systems"
        variables[f"{statistic.name}_error"] = Variable(("t",), coords, description=words)
    count, n, d = start.sizes
    attrs = {"n": n, "d": d, "samples": count, "attention": "unnormalised" if unnormalised else "softmax"}
    if mask != FullMask():
        attrs["mask"] = repr(mask)
    attrs |= {"query_key": repr(query_key), "value": repr(value), "integrator": repr(integrator)}
    # A store of other arguments is refused, also where these differ in the numbers of an array.
    numbers = digest(np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(diagram, eqx.is_array_like)))
    version = ", ".join(f"{name} = {setting}" for name, setting in attrs.items())
    dataset = run(
        diagram, {"beta": Axis(betas, description="inverse temperature")}, batch_size=batch_size, store=store,
        resume=resume, devices=_each_core() if devices is None else devices, progress=progress, seed=seed,
        cost=diagram.cost, variables=variables, version=f"{re.sub(' at 0x[0-9a-f]+', '', version)} [{numbers}]",
    )  # fmt: skip
    return dataset.assign_attrs(attrs)


def _numbers(values: Any, name: str, dtype: Any) -> np.ndarray:
    array = check_host_array(values, name, shape=(name,), least=0, remedy="pass numpy.linspace(0, 9, 90), say")
    array = array.astype(float)
    # A number beyond the range of the dtype becomes infinite, which is refused below.
    with np.errstate(over="ignore"):
        beyond = array[~np.isfinite(array.astype(dtype))]
    if beyond.size:
        raise refusal(name, f"be finite in {dtype.name}", f"one is {beyond[0]:g}", "drop those that are not")
    return array


def _dtype(dtype: Any) -> Any:
    """The dtype of the simulation."""
    checked = jnp.dtype(jnp.result_type(float)) if dtype is None else check_float_dtype(dtype)
    if checked not in (jnp.float32, jnp.float64):
        raise refusal("dtype", "be float32 or float64", f"it is {checked}", "choose one of them")
    if checked == jnp.float64 and not jax.config.read("jax_enable_x64"):
        remedy = "set jax_enable_x64 before, or pass float32"
        raise refusal("dtype", "be switched on", "float64 is not", remedy)
    return checked


def _each_core() -> list[Any]:
    """The devices of this process; a CPU is listed once per core, because a row of a diagram keeps one core busy."""
    devices = jax.local_devices()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices * (max(1, cores // len(devices)) if devices[0].platform == "cpu" else 1)
