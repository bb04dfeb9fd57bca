"""Neural collapse: the distance of class features and of the classifier from their four limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from .._base.checks import check_array, check_tokens
from .._base.numerics import at_least_single, is_concrete, matmul
from .._base.types import Scalar, Tokens


# Means that differ by less than this many machine epsilons of the longest feature count as equal.
_EQUAL = 256


class NeuralCollapse(eqx.Module):
    """The four measures, each of which is zero at the collapse; NaN where a measure is undefined.

    **Attributes:**

    - `variability`: NC1, $tr(Σ_W Σ_B^+)/C$: the spread within classes over the spread between classes.
    - `equinorm_means`, `equinorm_weights`: NC2, the standard deviation over the mean of the norms $|μ_c - μ_G|$, and of
        the norms of the rows of the classifier.
    - `equiangular_means`, `equiangular_weights`: NC2, the mean over pairs of $|cos + 1/(C-1)|$, the deviation from the
        angles of a simplex.
    - `self_duality`: NC3, $‖W/‖W‖_F - M/‖M‖_F‖_F²$ with the centred means as the rows of M; between 0 and 4.
    - `disagreement`: NC4, the fraction of features that the classifier assigns to another class than the nearest mean.
    """

    variability: Scalar
    equinorm_means: Scalar
    equinorm_weights: Scalar
    equiangular_means: Scalar
    equiangular_weights: Scalar
    self_duality: Scalar
    disagreement: Scalar


def neural_collapse(
    features: Tokens,
    labels: Int[ArrayLike, " n"],
    weights: Float[ArrayLike, "classes d"],
    bias: Float[ArrayLike, " classes"] | None = None,
) -> NeuralCollapse:
    """The measures NC1 to NC4 of features with classes, and of a linear classifier $h ↦ Wh + b$.

    All measures are invariant under a common rotation of features and rows of the classifier, and NC1 to NC3 also under
    rescaling of either and under a shift of all features. Classes have equal weight, whatever their sizes: the global
    mean is the mean of the class means, and $Σ_W$ the mean of the covariances of the classes; for classes of equal size
    this is the definition of the paper. All measures of the means are NaN if the means are equal up to rounding. Works
    under `jax.jit`; a traced class without a feature, or a traced invalid label, makes all measures of the means NaN.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> corners = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> labels = jnp.array([0, 1, 2, 0, 1, 2])
        >>> found = cjx.neural_collapse(corners[labels], labels, corners - 1 / 3)
        >>> print(f"{found.variability:.3f} {found.equiangular_means:.3f} {found.disagreement:.3f}")
        0.000 0.000 0.000
        ```

    **Arguments:**

    - `features`: (n, d), one feature per row.
    - `labels`: (n,), the class of each feature, from 0 to C - 1; each class has a feature.
    - `weights`: W, (C, d), C at least 2.
    - `bias`: b, (C,); None means zero.

    **Returns:**

    A `NeuralCollapse` with scalars of the dtype of `features`.

    **Raises:**

    - `ValueError` if the shapes do not fit, a number is not finite, there are fewer than two classes, or a class has no
        feature.

    ??? cite "Source"

        Papyan, Han and Donoho, *Prevalence of neural collapse during the terminal phase of deep learning training*
        (2008.08186), NC1 to NC4. This library adds classes of different sizes, and NaN for equal means.
    """
    features = check_tokens(features, "features")
    n, d = features.shape
    remedy = f"pass one row of {d} numbers for each class"
    weights = check_array(weights, "weights", shape=("classes", d), remedy=remedy)
    classes = weights.shape[0]
    if classes < 2:
        raise ValueError(f"weights must have rows for 2 classes at least, but it has {classes}; {remedy}.")
    labels = check_array(labels, "labels", shape=(n,), integers=True, remedy=f"pass the class of each of {n} features")
    zeros = jnp.zeros(classes, features.dtype)
    remedy = f"pass {classes} numbers, or None"
    bias = zeros if bias is None else check_array(bias, "bias", shape=(classes,), remedy=remedy)
    if is_concrete(labels):
        _check_labels(np.asarray(labels), classes)
    return _measure(features, labels, weights.astype(features.dtype), bias.astype(features.dtype))


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels[(labels < 0) | (labels >= classes)][0]
        raise ValueError(f"labels must be from 0 to {classes - 1}, but one is {bad}; pass the row of its class.")
    missing = np.setdiff1d(np.arange(classes), labels)
    if missing.size:
        raise ValueError(
            f"labels must name each of {classes} classes, but class {missing[0]} has no feature; leave out its row of "
            "weights."
        )


@eqx.filter_jit
def _measure(features: Array, labels: Array, weights: Array, bias: Array) -> NeuralCollapse:
    from scipy.linalg import helmert  # imported only when needed

    classes = weights.shape[0]
    # An invalid label has a row of zeros; the measures are made NaN below.
    member = jax.nn.one_hot(labels, classes, dtype=features.dtype)
    counts = member.sum(axis=0)
    known = jnp.all(counts > 0) & jnp.all(member.sum(axis=1) == 1)
    counts = jnp.where(known, counts, jnp.nan)
    rounding = _EQUAL * jnp.finfo(features.dtype).eps * jnp.max(jnp.linalg.norm(features, axis=1))
    predicted = jnp.argmax(matmul(features, weights.T) + bias[None], axis=1)
    # All further quantities are differences, which would lose digits to a large common offset.
    features = features - features[:1]
    means = matmul(member.T, features) / counts[:, None]
    centred = means - means.mean(axis=0, keepdims=True)
    lengths = jnp.linalg.norm(centred, axis=1)
    apart = lengths.max() > rounding
    defined = lambda value: jnp.where(apart, value, jnp.nan)
    within = (features - means[jnp.clip(labels, 0, classes - 1)]) / jnp.sqrt(counts[labels] * classes)[:, None]
    # With S_B = M^T M / C, tr(S_W S_B^+) / C is the mean of |(h - mu) M^+|^2, without squaring a (d, d) matrix. C
    # centred means span at most C - 1 directions, so that M has C - 1 rows, the contrasts of the means. `pinv`
    # would invert directions within the rounding error of the features, which may far exceed that of the means, so that
    # these directions are removed.
    contrasts = matmul(jnp.asarray(helmert(classes), features.dtype), jnp.where(apart, means, jnp.ones_like(means)))
    contrasts = contrasts.astype(at_least_single(features.dtype))
    axes, sizes, _ = jnp.linalg.svd(lax.stop_gradient(contrasts), full_matrices=False)
    axes = jnp.where(sizes > rounding.astype(sizes.dtype), axes, 0)
    inverse = jnp.linalg.pinv(matmul(axes, matmul(axes.T, contrasts))).astype(features.dtype)
    variability = jnp.sum(matmul(within, inverse) ** 2)
    scaled = lambda matrix: matrix / jnp.linalg.norm(matrix)
    squares = jnp.sum((features[:, None, :] - means[None]) ** 2, axis=-1)
    nearest = jnp.argmin(squares, axis=1)
    off = jnp.where(known, jnp.mean((nearest != predicted).astype(features.dtype)), jnp.nan)
    return NeuralCollapse(
        defined(variability),
        defined(jnp.std(lengths) / jnp.mean(lengths)),
        _spread(weights),
        defined(_from_simplex(centred)),
        _from_simplex(weights),
        defined(jnp.sum((scaled(weights) - scaled(centred)) ** 2)),
        defined(off),
    )


def _spread(rows: Float[Array, "classes d"]) -> Scalar:
    lengths = jnp.linalg.norm(rows, axis=1)
    return jnp.std(lengths) / jnp.mean(lengths)


def _from_simplex(rows: Float[Array, "classes d"]) -> Scalar:
    """The mean of |cos + 1 / (C - 1)| over pairs of rows."""
    units = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    classes = rows.shape[0]
    off = jnp.abs(matmul(units, units.T) + 1 / (classes - 1))
    return jnp.sum(jnp.where(jnp.eye(classes, dtype=bool), jnp.zeros_like(off), off)) / (classes * (classes - 1))
