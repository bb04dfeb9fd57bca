"""The checks of arguments: the accepted values, the converted results, and the words of each refusal."""

import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import clusterjax as cjx
from clusterjax._base import checks as check
from clusterjax._model.mask import AbstractMask, CausalMask
from tests.helpers import as_a_user


FORM = re.compile(r"^x must .+, but .+; .+\.$")


def refusal(call, *args, **kwargs):
    with as_a_user(), pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert FORM.match(message) and len(message) < 300, message
    return message


@pytest.mark.parametrize("value", (1, 7, np.int32(7), np.asarray(3), jnp.asarray(3)))
def test_integers_enter(value):
    found = check.check_integer(value, "x")
    assert type(found) is int and found == int(value)


def test_the_range_of_an_integer_has_both_its_ends():
    for value in (0, 5):
        assert check.check_integer(value, "x", least=0, most=5) == value
    for value in (-1, 6):
        message = refusal(check.check_integer, value, "x", least=0, most=5)
        assert f"must be an integer from 0 to 5, but it is {value};" in message


@pytest.mark.parametrize("value", (np.ma.masked, np.ma.array(3, mask=True), np.ma.array(3.0, mask=True)))
def test_a_masked_number_is_refused(value):
    for door in (check.check_integer, check.check_number, check.check_scalar):
        assert "x must hold no entries that are masked, but 1 of 1 are" in refusal(door, value, "x")
    assert "args must hold no entries that are masked" in str(
        pytest.raises(ValueError, check.check_args, [value]).value
    )


def test_bytes_enter_in_the_order_of_this_machine():
    swapped = np.asarray([1.5, -2.0]).astype(">f8" if sys.byteorder == "little" else "<f8")
    found = check.as_numbers(swapped, "x")
    assert found.dtype.isnative and found.tolist() == [1.5, -2.0]


def test_numbers_that_a_dtype_does_not_hold_are_refused():
    for value, dtype, integers in ((1e39, jnp.float32, False), (1e5, jnp.float16, False), (2**40, jnp.int32, True)):
        with (
            as_a_user(),
            pytest.raises(ValueError, match=rf"^x must fit in {jnp.dtype(dtype)}, which ends at .*; pass"),
        ):
            check.check_fits(np.asarray([1, value]), "x", dtype, integers=integers)
    check.check_fits(np.asarray([np.inf, 1.0]), "x", jnp.float32)


@pytest.mark.parametrize("wrap", (lambda array: array, lambda array: [array]))
def test_a_masked_array_is_refused(wrap):
    words = refusal(check.as_numbers, wrap(np.ma.array([1.0, 2.0], mask=[False, True])), "x")
    assert "x must hold no entries that are masked, but 1 of 2 are" in words


def test_a_list_in_itself_is_no_argument_of_a_field():
    args = []
    args.append(args)
    with pytest.raises(ValueError, match="args must be nested at most 32 deep, but it is a list that is nested more"):
        check.check_args(args)


def test_a_traced_integer_is_refused():
    with pytest.raises(ValueError, match="x must be a positive integer, but it is an array of shape"):
        jax.jit(lambda n: check.check_integer(n, "x"))(3)


@pytest.mark.parametrize("value", (0.5, 1, np.float32(0.5), jnp.asarray(0.5), np.asarray(1)))
def test_numbers_enter(value):
    assert check.check_number(value, "x", above=0, most=1) == float(value)


@pytest.mark.parametrize(("bounds", "inside", "outside"), (({"least": 0}, 0, -1), ({"below": 1}, 0.9, 1)))
def test_the_ends_of_a_range_of_numbers(bounds, inside, outside):
    assert check.check_number(inside, "x", **bounds) == inside
    refusal(check.check_number, outside, "x", **bounds)


@pytest.mark.parametrize("value", ([[1, 2], [3, 4]], np.eye(2), jnp.eye(2), [[jnp.ones(()), 0.0], [1.0, 2.0]]))
def test_arrays_enter_as_floats(value):
    found = check.check_array(value, "x", shape=(2, "d"))
    assert isinstance(found, jax.Array) and jnp.issubdtype(found.dtype, jnp.floating)
    np.testing.assert_array_equal(found, np.asarray([[float(k) for k in row] for row in value]))


@pytest.mark.parametrize("value", (np.ones(2), np.ones((3, 2)), np.ones((2, 0)), 1.0))
def test_arrays_of_another_shape_are_refused(value):
    assert f"but its shape is {np.shape(value)}" in refusal(check.check_array, value, "x", shape=(2, "d"))


def test_the_first_bad_entry_of_an_array_is_named():
    assert "must be finite, but entry (1, 0) is nan" in refusal(check.check_array, [[0.0, 1.0], [np.nan, 2.0]], "x")
    assert "must be at least 0, but entry 1 is -2.0" in refusal(check.check_array, [0.0, -2.0], "x", least=0)
    assert "must be from 0 to 1, but entry 0 is 2.0" in refusal(check.check_array, [2.0], "x", least=0, most=1)
    assert "must be real, but its dtype is complex128" in refusal(check.check_array, [1j], "x")
    assert "its dtype is float64" in refusal(check.check_array, [1.0], "x", integers=True)


def test_integers_stay_integers():
    assert check.check_array([1, 2], "x", integers=True).dtype == jnp.asarray([1]).dtype


def test_traced_arrays_enter_by_shape():
    assert jax.jit(lambda x: check.check_array(x, "x", shape=("n",), least=5))(jnp.ones(2)).shape == (2,)
    with pytest.raises(ValueError, match=r"its shape is \(2,\)"):
        jax.jit(lambda x: check.check_array(x, "x", shape=(3,)))(jnp.ones(2))


def test_scalars_are_never_weakly_typed_and_may_be_traced():
    assert not check.check_scalar(1.0, "x").weak_type
    assert check.check_scalar(1, "x", jnp.float32).dtype == jnp.float32
    assert jax.jit(lambda x: check.check_scalar(x, "x", above=0))(-1.0) == -1
    refusal(check.check_scalar, -1.0, "x", above=0)
    assert "map over several" in refusal(check.check_scalar, jnp.ones(2), "x")
    for value in ("1", None, 1j, True, float("nan"), {}):
        refusal(check.check_scalar, value, "x")


def test_the_class_in_place_of_an_instance_has_words_of_its_own():
    rule = ("x", AbstractMask, "a mask of clusterjax", "pass FullMask(), for example")
    assert check.check_instance(CausalMask(), *rule) == CausalMask()
    assert "it is the class CausalMask itself; pass an instance, CausalMask(...)" in refusal(
        check.check_instance, CausalMask, *rule
    )
    assert "must be a mask of clusterjax, but it is 'causal'; pass CausalMask()" in refusal(
        check.check_instance, "causal", *rule
    )


def test_older_keys_enter_and_several_do_not():
    check.check_key(jax.random.PRNGKey(0), "x")
    refusal(check.check_key, jax.random.split(jax.random.key(0)), "x")


def test_tokens_of_integers_are_floats():
    assert check.check_tokens([[1, 2], [3, 4]], "x").dtype == jnp.result_type(float)


def test_a_value_is_shown_in_a_few_characters():
    long = ("a" * 10**5, 10**5000, np.zeros(10**5), list(range(10**5)), b"0" * 10**5)
    for value in (*long, 1.5, object(), sys.intern, int):
        assert 0 < len(check.shown(value)) < 90


@pytest.mark.parametrize("value", (print, [].append, lambda line: None, lambda *lines, **more: None))
def test_functions_of_a_line_enter(value):
    assert check.check_say(value, "x") is value


def test_a_traced_value_is_refused_where_its_numbers_are_needed():
    check.check_concrete(jnp.ones(2), "x")
    check.check_concrete("text", "x")
    assert "it is traced" in refusal(jax.jit(lambda value: check.check_concrete(value, "x")), jnp.ones(2))


def test_a_function_that_is_not_of_python_may_say_that_it_takes_itself():
    """`tokenizers` declares the signature (self, id) for its bound methods."""
    method = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).id_to_token
    assert check.check_callable(method, "words", takes=1) is method and method(0) == "a"


def test_sizes_are_held_against_indices_and_memory(monkeypatch):
    monkeypatch.setattr(check, "memory_room", lambda: 2.0**30)
    options = {"remedy": "pass fewer"}
    check.check_room(3, "x", 2.0**30, "three arrays", longest=check.MOST_ENTRIES, **options)
    longer = refusal(check.check_room, 3, "x", 1.0, "three arrays", longest=2**31, **options)
    assert longer.startswith(
        "x must make no axis longer than int32 can index, but it is 3, and one axis has 2147483648"
    )
    larger = refusal(check.check_room, 3, "x", 2.0**30 + 1, "three arrays", **options)
    assert (
        larger
        == "x must leave room in memory, but it is 3, and three arrays take 1 GiB, while 1 GiB are free; pass fewer."
    )


def test_the_free_memory_is_read_from_the_system():
    """The free memory is positive and at most the memory of the machine."""
    room = check.memory_room()
    assert 0 < room <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert check.memory_room(device=False) > 0


ATTENTION = cjx.SoftmaxAttention(1.0)
RUNS = {
    "simulate": lambda x: cjx.simulate(cjx.AttentionField(ATTENTION), x, [0.0, 1.0]).xs,
    "coarsen": lambda x: cjx.coarsen(cjx.AttentionField(ATTENTION), x, 5.0, tolerance=0.1).times,
}
FORMULAS = {
    "attention": lambda x: ATTENTION.average(x, x),
    "field": lambda x: cjx.AttentionField(ATTENTION)(0.0, x),
    "layer": lambda x: cjx.ResidualLayer(cjx.AttentionField(ATTENTION), 0.1)(0.0, x),
    "observable": lambda x: cjx.interaction_energy(x, 1.0),
    "norm": lambda x: cjx.transformer.LayerNorm(x[0]).gain,
}


@pytest.mark.exhaustive_cases("field", "observable", "simulate")
@pytest.mark.parametrize("name", [*FORMULAS, *RUNS])
def test_every_door_has_one_rule_for_dtypes(name):
    """As in docs/howto/float64.md, integers and booleans become floats, half precision stays, complex is refused."""
    call, x = (FORMULAS | RUNS)[name], np.array([[1, 0], [0, 1]])
    dtype_of = lambda x: (call(x) if name in RUNS else jax.eval_shape(lambda: call(x))).dtype
    with as_a_user():
        for dtype in (int, bool):
            assert dtype_of(x.astype(dtype)) == np.float64
        for dtype in (jnp.float16, jnp.bfloat16):
            if name in RUNS:
                with pytest.raises(ValueError, match="must be of float32 or float64"):
                    call(x.astype(dtype))
            else:
                assert dtype_of(x.astype(dtype)) == dtype
        with pytest.raises(ValueError, match="must be real, but its dtype is complex128"):
            call(x + 1j)
