"""The free parameters of a field, selected by a function of the field, as one vector.

**Algorithm.** The leaves of the field are replaced by their indices, and the selecting function is called on the field
of indices, so that it selects leaves independently of their values. **Reference.** The selecting function is of the
kind that `equinox.tree_at` takes first. **Invariants.** A vector and a field determine each other:
`values(with_vector(v)) == v`. The structure of the field does not change, so nothing is compiled anew.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import check_callable, check_concrete, check_room, check_tokens, refusal, shown
from .._base.types import Tokens
from .._model.field import AbstractField, check_field
from .._model.schedule import AbstractSchedule, PiecewiseConstant
from .._model.space import check_directions


class _Place:
    """The index of a leaf, which replaces the leaf."""

    def __init__(self, index: int):
        self.index = index


class Parameters(eqx.Module):
    """The selected leaves of a field: their indices, names and shapes."""

    indices: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def count(self) -> int:
        """The total number of entries of the leaves."""
        return sum(self.sizes)

    def values(self, field: AbstractField) -> tuple[Array, ...]:
        """The selected leaves of `field`."""
        leaves = jtu.tree_leaves(field)
        return tuple(leaves[index] for index in self.indices)

    def split(self, vector: Any) -> tuple[Any, ...]:
        """The parts of a vector, (..., p), in the shapes of the leaves: (..., *shape)."""
        cuts = np.cumsum(self.sizes)[:-1]
        parts = (np if isinstance(vector, np.ndarray) else jnp).split(vector, cuts, axis=-1)
        return tuple(part.reshape((*part.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True))

    def vector(self, leaves: tuple[Array, ...], dtype: Any) -> Float[Array, " p"]:
        """The leaves as one vector."""
        return jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in leaves])

    def put(self, field: AbstractField, parts: tuple[Any, ...]) -> AbstractField:
        """`field` with the selected leaves replaced by other leaves, or by schedules."""
        leaves, structure = jtu.tree_flatten(field)
        for index, part in zip(self.indices, parts, strict=True):
            leaves[index] = part
        return jtu.tree_unflatten(structure, leaves)

    def with_vector(self, field: AbstractField, vector: Float[Array, " p"]) -> AbstractField:
        """`field` with the entries of a vector in the selected leaves."""
        olds = self.values(field)
        return self.put(field, tuple(p.astype(old.dtype) for p, old in zip(self.split(vector), olds, strict=True)))

    def pieces(self, vector: Any) -> tuple[np.ndarray, ...]:
        """The values of each leaf in all pieces, (pieces, *shape), from the vectors of the pieces."""
        return self.split(np.asarray(vector).reshape(-1, self.count))

    def in_pieces(self, field: AbstractField, knots: Array, vector: Float[Array, " lp"]) -> AbstractField:
        """`field` with each leaf piecewise constant in time; `vector` concatenates the vectors of the pieces."""
        rows = vector.reshape(knots.shape[0], self.count)
        return self.put(field, tuple(PiecewiseConstant(knots, part) for part in self.split(rows)))


def check_host(**arguments: Any) -> None:
    """Raise a ValueError if an argument is traced, because a design branches on its numbers.

    Within a transformation of jax every result is traced, so arguments are checked as they were passed.
    """
    for name, value in arguments.items():
        check_concrete(value, name)


def read_start(field: AbstractField, x0: Any) -> Tokens:
    """The tokens at the start, on the space of `field`."""
    x0 = check_tokens(x0, "x0")
    check_directions(check_field(field).space, x0, "x0")
    field.check(*x0.shape)
    return field.space.retract(x0)


def pick_parameters(field: AbstractField, which: Callable[[Any], Any] | None, *, pieces: bool = False) -> Parameters:
    """The leaves of `field` that `which` selects, by default all floats but times; with `pieces` none of a schedule."""
    leaves, structure = jtu.tree_flatten(field)
    labelled = jtu.tree_unflatten(structure, [_Place(index) for index in range(len(leaves))])
    paths = [jtu.keystr(path) for path, _ in jtu.tree_flatten_with_path(field)[0]]
    # A solver steps exactly to the knots of a schedule, so no derivative flows through them.
    is_time = lambda path: path.endswith(".ts") and _schedule_at(field, path) is not None
    is_free = lambda index: eqx.is_inexact_array(leaves[index]) and not is_time(paths[index])
    if which is None:
        indices = [index for index in range(len(leaves)) if is_free(index)]
    else:
        check_callable(which, "which", "a function of the field", takes=1)
        indices = [_index_of(entry) for entry in _entries(which(labelled))]
    rule = "which must pick arrays of floats of the field, each once"
    for index in indices:
        if not is_free(index):
            raise ValueError(f"{rule}, but {paths[index]} is {shown(leaves[index])}; pick such as f.value.")
    if not indices or len(set(indices)) < len(indices):
        problem = "it picks none" if not indices else "it picks one twice"
        raise ValueError(f"{rule}, but {problem}; pass such as lambda f: (f.attention.beta, f.value).")
    scheduled = [paths[index] for index in indices if _schedule_at(field, paths[index]) is not None]
    if pieces and scheduled:
        raise ValueError(f"{rule}, but {scheduled[0]} is of a schedule; give the field numbers, which become pieces.")
    return Parameters(tuple(indices), _short(paths, indices), tuple(jnp.shape(leaves[index]) for index in indices))


def check_pieces(field: AbstractField, parameters: Parameters, x0: Array, pieces: int) -> None:
    """Check by an abstract evaluation that every parameter may be a schedule of so many pieces."""
    # A fit holds four vectors: the initial guess, the current point, a step and a gradient.
    numbers = pieces * parameters.count
    num_bytes, content = 4 * numbers * x0.dtype.itemsize, "the parameters of the pieces and a step of theirs"
    check_room(pieces, "pieces", num_bytes, content, longest=numbers, remedy="pass fewer pieces")
    for index, name, shape in zip(parameters.indices, parameters.names, parameters.shapes, strict=True):
        parameter = Parameters((index,), (name,), (shape,))
        scheduled = parameter.put(field, (PiecewiseConstant(jnp.zeros(1, x0.dtype), parameter.values(field)[0][None]),))
        try:
            eqx.filter_eval_shape(scheduled, jnp.zeros((), x0.dtype), x0)
        except Exception as error:
            raise refusal("which", "pick what may depend on time", f"{name} may not",
                          "leave it out, and pick the matrices beside it") from error  # fmt: skip


def _entries(picked: Any) -> list[Any]:
    """The selected entries in order; a None and a schedule are kept as entries, so that they can be refused."""
    stop = lambda node: node is None or isinstance(node, AbstractSchedule | _Place)
    return jtu.tree_leaves(picked, is_leaf=stop)


def _index_of(entry: Any) -> int:
    rule = "which must pick arrays of floats of the field, each once"
    if entry is None:
        raise ValueError(f"{rule}, but one is None, which is the identity; give the field value=jnp.eye(d), or such.")
    if isinstance(entry, AbstractSchedule):
        raise ValueError(f"{rule}, but one is a {type(entry).__name__}; pick its values, f.value.values.")
    if not isinstance(entry, _Place):
        raise ValueError(f"{rule}, but one is {shown(entry)}; pass such as lambda f: (f.attention.beta, f.value).")
    return entry.index


def _schedule_at(field: AbstractField, path: str) -> AbstractSchedule | None:
    """The schedule that contains the leaf at `path`, or None."""
    is_schedule = lambda node: isinstance(node, AbstractSchedule)
    for start, node in jtu.tree_flatten_with_path(field, is_leaf=is_schedule)[0]:
        if is_schedule(node) and path.startswith(f"{jtu.keystr(start)}."):
            return node
    return None


def _short(paths: list[str], indices: list[int]) -> tuple[str, ...]:
    """The last name in each path, "value" for ".value", or the whole path where two last names are equal."""
    whole = [paths[index].removeprefix(".") for index in indices]
    last = [path.removesuffix(".values").split(".")[-1] for path in whole]
    count = Counter(last)
    return tuple(name if count[name] == 1 else path for name, path in zip(last, whole, strict=True))
