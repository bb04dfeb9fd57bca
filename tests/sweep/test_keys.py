"""The key of a point depends on its coordinates and the seed: it is the same in every grid, and no points share it."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import sweep
from clusterjax.sweep._labels import parse_axes, words_of
from tests.helpers import as_a_user
from tests.sweep_cases import point, run


# Hashes by `printf '%s' TEXT | b2sum -l 64`; TEXT is a name, the number of the value among equal values, and the value.
HASHES = {
    "beta:0:0x1.999999999999ap-4": (("beta", [0.1]), "126ddce3d8cec145"),
    "beta:0:1": (("beta", [1.0]), "baa996d0dad9e813"),
    "draw:1:0": (("draw", [0, 0]), "05d88fedd099413d"),
    "model:0:text:tanh": (("model", ["tanh"]), "4b6dcb52c214d235"),
    "V:0:(2, 2) 1 0 0 1": (("V", [np.eye(2)]), "f250d6c7efa6eed1"),
    "z:0:1,0x1.8000000000000p+0": (("z", [1 + 1.5j]), "098054a7b1e99719"),
    "flag:0:True": (("flag", [True]), "6aa216d054ef2a2b"),
}


def words(name, values, **options):
    (axis,) = parse_axes({name: sweep.Axis(values, **options)})
    return words_of(axis.coords())


def draw(beta, draw, key):
    return jr.uniform(key, (), float)


@pytest.mark.parametrize("text", HASHES)
def test_the_words_are_those_of_a_public_hash(text):
    axis, digest = HASHES[text]
    found = words(*axis)[-1]
    assert [int(word) for word in found] == [int.from_bytes(bytes.fromhex(digest)[k : k + 4], "little") for k in (0, 4)]


def test_equal_numbers_have_equal_words_and_others_have_others():
    for same in ([1, 2], [1.0, 2.0], np.array([1, 2], np.float32), np.array([1, 2], np.uint8), jnp.array([1.0, 2.0])):
        np.testing.assert_array_equal(words("beta", same), words("beta", [1, 2]))
    np.testing.assert_array_equal(words("beta", [1, 2], static=True), words("beta", [1, 2]))
    np.testing.assert_array_equal(words("beta", [1.0, 2.0], static=True), words("beta", [1, 2]))
    np.testing.assert_array_equal(words("beta", [-0.0]), words("beta", [0]))
    # One third in float32 is another number than one third in float64.
    others = [0.0, 1 / 3, np.float64(np.float32(1 / 3)), 1e300, np.nextafter(1.0, 2.0), 1.0, 2**53, 5e-324, np.inf]
    several = [
        *words("beta", others),
        *words("alpha", others),
        *words("beta", [1j, 1 + 1j]),
        *words("beta", ["1", "x"]),
    ]
    several += [*words("beta", [7, 7, 7]), *words("beta", [2**53 + 1]), *words("beta", [True])]
    several += [*words("beta", np.ones((1, 2, 2))), *words("beta", np.ones((1, 4)))]
    assert len({tuple(word) for word in several}) == len(several)
    np.testing.assert_array_equal(words("beta", [7, 7, 7])[:1], words("beta", [7]))


def test_points_have_the_key_that_they_have_alone():
    """Keys are the same in any grid, order of axes and batches, and equal a plain loop of `fold_in`."""
    axes = {"beta": [0.1, 1.0, 9.0], "draw": range(4)}
    found = sweep.run(draw, axes, batch_size=5, seed=3, progress=False)
    for beta in axes["beta"]:
        for number in axes["draw"]:
            key = jr.key(3)
            for word in (*words("beta", [beta])[0], *words("draw", [number])[0]):
                key = jr.fold_in(key, word)
            expected = float(draw(beta, number, key))
            assert float(found.result.sel(beta=beta, draw=number)) == expected
            assert float(draw(beta, number, sweep.point_key(3, {"draw": number, "beta": beta}))) == expected
    assert len(np.unique(found.result)) == 12
    other = sweep.run(draw, {"draw": [3, 7], "beta": [9.0, 2.0]}, batch_size=4, seed=3, progress=False)
    assert float(other.result.sel(beta=9.0, draw=3)) == float(found.result.sel(beta=9.0, draw=3))
    rest = [float(other.result.sel(beta=beta, draw=number)) for beta, number in ((2.0, 3), (9.0, 7), (2.0, 7))]
    assert not np.isin(rest, found.result).any() and len(set(rest)) == 3
    again = sweep.run(draw, axes, batch_size=5, seed=4, progress=False)
    assert not np.isin(again.result, found.result).any()


def test_static_axes_and_arrays_have_keys_of_their_own():
    whole = run(None)
    key = sweep.point_key(3, {"beta": 2, "model": "tanh", "V": np.ones((3, 3))})
    np.testing.assert_array_equal(
        whole.y.sel(beta=2.0, model="tanh", V=1), point(2.0, "tanh", np.ones((3, 3)), key)["y"]
    )
    repeated = sweep.run(lambda draw, key: jr.uniform(key), {"draw": [0, 0, 0]}, batch_size=3, progress=False)
    assert len(np.unique(repeated.result)) == 3


def test_which_points_have_no_key():
    with as_a_user():
        for seed, coordinates, words in (
            (-1, {"beta": 1.0}, "seed must be an integer from 0"),
            (0, [("beta", 1.0)], "coordinates must be a mapping"),
            (0, {}, "coordinates must name a value of each axis"),
            (0, {"key": 1.0}, "axes must not be called 'key'"),
            (0, {"beta": np.nan}, "beta must not hold nan"),
        ):
            with pytest.raises(ValueError, match=f"^{words}"):
                sweep.point_key(seed, coordinates)
        with pytest.raises(ValueError, match="traced"):
            jax.jit(lambda beta: jr.key_data(sweep.point_key(0, {"beta": beta})))(1.0)
