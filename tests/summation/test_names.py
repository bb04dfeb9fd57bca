"""`stats["summation"]` names what summed, for every summation, mask and kind of attention.

What it must say is not read from a table: the methods that sum are replaced by ones that note who was called last, the
innermost of those that call one another.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.simulate import _summations, _with_summations
from clusterjax._summation import devices as sharded
from clusterjax._summation.harmonic import summation as harmonic
from tests.helpers import as_a_user, sphere_tokens


CLASSES = (cjx.Dense, cjx.Blocked, cjx.Harmonic, cjx.Hull, cjx.Auto)
DEVICES = jax.sharding.Mesh(jax.devices()[:1], ("rows",))
SUMMATIONS = {
    **{kind.__name__: kind() for kind in CLASSES},
    **{
        f"Sharded {kind.__name__}": cjx.Sharded(kind(), "rows", DEVICES)
        for kind in (cjx.Auto, cjx.Blocked, cjx.Dense, cjx.Harmonic)
    },
}
KINDS: dict[str, Callable[..., Any]] = {
    "softmax": lambda **options: cjx.SoftmaxAttention(1.0, **options),
    "unnormalised": lambda **options: cjx.UnnormalisedAttention(1.0, **options),
    "hardmax": cjx.HardmaxAttention,
}


@contextmanager
def noted(monkeypatch):
    """A list which fills with the names of the classes whose own code sums."""
    names, depth = [], []

    def watched(kind, method):
        inner = getattr(method, "__wrapped__", method)  # without jit, which would not run the body again

        def call(self, *args):
            depth.append(kind.__name__)
            before = len(names)
            try:
                out = inner(self, *args)
            finally:
                depth.pop()
            if len(names) == before:  # nobody else was called by it
                names.append(kind.__name__)
            return out

        return call

    def ring(collectives, mask, block_rows, block_columns):
        names.append("Dense" if block_rows == block_columns == ROWS[0] else "Blocked")
        return MAKE_RING(collectives, mask, block_rows, block_columns)

    def by_moments(inner, collectives, mask, queries, block):
        names.append("Harmonic")
        return jnp.zeros_like(queries[:, 0]), jnp.zeros((queries.shape[0], 1 + queries.shape[1]), queries.dtype)

    def series(queries, tokens, *_):  # long to trace, and nobody else is called by it
        return jnp.zeros((tokens.shape[0], 1 + tokens.shape[1]), tokens.dtype), jnp.ones(tokens.shape[0], bool)

    with monkeypatch.context() as patch:
        for kind in CLASSES:
            for method in {"exponential", "hardmax"} & set(vars(kind)):
                patch.setattr(kind, method, watched(kind, vars(kind)[method]))
        for method in ("exponential", "hardmax"):
            whole = vars(cjx.Sharded)[method]
            patch.setattr(cjx.Sharded, method, getattr(whole, "__wrapped__", whole))
        patch.setattr(harmonic, "_expand", series)
        patch.setattr(harmonic, "_sum_uncertified_rows", lambda shift, sums, *_: (shift, sums))
        patch.setattr(sharded, "Ring", ring)
        patch.setattr(sharded, "_harmonic", by_moments)
        yield names


MAKE_RING, ROWS = sharded.Ring, [0]


def said_and_done(monkeypatch, field, n: int, d: int, dtype: Any = jnp.float32) -> tuple[Any, list[str]]:
    """What a run of `n` tokens says, and who sums when its field is evaluated; nothing is compiled."""
    shape, said = jax.ShapeDtypeStruct((n, d), dtype), []
    ROWS[0] = n

    def say(x):
        said.append(_summations(field, x, jnp.asarray(0.0, dtype), None).get("summation"))

    jax.eval_shape(say, shape)
    # The ring is written for 32 bits, as its own tests have it.
    with noted(monkeypatch) as names, jax.numpy_dtype_promotion("standard"):
        jax.eval_shape(lambda x: field(jnp.asarray(0.0, dtype), x, None), shape)
    return said[0], list(dict.fromkeys(names))


def refused(name: str, kind: str, mask: cjx.AbstractMask) -> str | None:
    """What the message says first of those that do not go together; None of those that do."""
    if ("Hull" in name) != (kind == "hardmax") and ("Hull" in name or "Harmonic" in name):
        inner = ".inner" if "Sharded" in name else ""
        return f"summation{inner} must be one that " + ("searches" if kind == "hardmax" else "sums exponentials")
    if ("Hull" in name or "Harmonic" in name) and isinstance(mask, cjx.WindowMask | cjx.MatrixMask):
        return f"mask of {name.split()[0]} must be FullMask or CausalMask, but it is a {type(mask).__name__}; take"
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SUMMATIONS)
def test_a_run_says_who_sums(monkeypatch, name, kind):
    """Or what does not serve is refused where it is made."""
    for mask in (cjx.FullMask(), cjx.CausalMask(), cjx.WindowMask(3), cjx.MatrixMask(np.ones((600, 600), bool))):
        words = refused(name, kind, mask)
        if words is not None:
            with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
                KINDS[kind](mask=mask, summation=SUMMATIONS[name])
            continue
        for n in (600,) if isinstance(mask, cjx.MatrixMask) or "Auto" not in name else (600, 70_000):
            for d in (2, 5) if "Auto" in name else (2,):
                attention = KINDS[kind](mask=mask, summation=SUMMATIONS[name])
                said, names = said_and_done(monkeypatch, cjx.AttentionField(attention), n, d)
                assert len(names) == 1
                assert said == (f"Sharded({names[0]})" if "Sharded" in name else names[0]), (mask, n, d)


@pytest.mark.parametrize(
    ("summation", "kind", "d", "words"),
    (
        (cjx.Hull(), "hardmax", 3, "tokens of Hull must be of dimension 2, but theirs is 3; take summation=Blocked"),
        (cjx.Harmonic(), "softmax", 5, "tokens of Harmonic must be of dimension 2 or 3 or 4, but theirs is 5"),
        (cjx.Sharded(cjx.Harmonic(), "rows", DEVICES), "softmax", 5, "tokens of Sharded must be of dimension 2 or 3"),
    ),
    ids=lambda value: "",
)
def test_tokens_that_are_not_served_are_refused_at_the_door(summation, kind, d, words):
    """By a run, by a field of several heads and by the sum itself, each in the same words."""
    attention = KINDS[kind](summation=summation)
    x = sphere_tokens(1, 4, d)
    heads = cjx.MultiHeadField(
        np.ones(2), None, np.stack([np.eye(d)] * 2), summation=summation,
        attention=lambda beta, **options: KINDS[kind](**options),
    )  # fmt: skip
    for call in (
        lambda: cjx.simulate(cjx.AttentionField(attention), x, jnp.asarray([0.0, 1.0])),
        lambda: cjx.simulate(heads, x, jnp.asarray([0.0, 1.0])),
        lambda: attention.average(x, None),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            call()


@pytest.mark.exhaustive_cases("Harmonic", "Sharded Harmonic")
@pytest.mark.parametrize("name", SUMMATIONS)
def test_forward_mode_is_as_supports_says(name):
    summation = SUMMATIONS[name]
    kind = "softmax" if isinstance(summation, cjx.AbstractExponentialSum) else "hardmax"
    x = sphere_tokens(2, 16, 2)
    average = lambda x: KINDS[kind](summation=summation).average(x, None)
    served = True
    try:
        jax.jvp(average, (x,), (jnp.ones_like(x),))
    except TypeError as error:
        assert "forward-mode" in str(error)
        served = False
    assert served == summation.supports.forward_mode


class Slow(cjx.AbstractExponentialSum):
    """A summation of a user's own: one class, and nothing else is told of it."""

    @property
    def supports(self):
        return cjx.Support(dimensions=(2,))

    def exponential(self, queries, tokens, values, masses, mask):
        return cjx.Dense().exponential(queries, tokens, values, masses, mask)


def test_a_summation_is_one_class():
    """It sums, is named, and refuses what it does not serve."""
    x = sphere_tokens(1, 6, 2)
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, summation=Slow()))
    ts, plain = jnp.asarray([0.0, 1.0]), cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    found, wanted = (cjx.simulate(f, x, ts) for f in (field, plain))
    assert found.stats["summation"] == "Slow"
    np.testing.assert_allclose(found.xs, wanted.xs, atol=1e-12)
    with pytest.raises(ValueError, match="^tokens of Slow must be of dimension 2, but theirs is 3"):
        cjx.simulate(field, sphere_tokens(1, 6, 3), ts)
    words = "summation must be one that searches for the largest score, but it is a Slow"
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        cjx.HardmaxAttention(summation=Slow())


@pytest.mark.exhaustive
def test_heads_sums_scales_and_rescaled_fields(monkeypatch):
    window, eye = cjx.WindowMask(2), np.eye(2)
    heads = np.stack([eye, 2 * eye])
    hull, series = cjx.Hull(), cjx.Harmonic()
    fields = {
        "Harmonic": cjx.MultiHeadField(1.0, heads, heads, summation=series),
        "Hull": cjx.MultiHeadField(
            np.ones(2), heads, heads, summation=hull, attention=lambda beta, **options: cjx.HardmaxAttention(**options)
        ),
        "Blocked": cjx.MultiHeadField(1.0, heads, heads, mask=window, summation=cjx.Blocked()),
        "Blocked and Hull and Dense": 2.0 * cjx.AttentionField(cjx.SoftmaxAttention(1.0, summation=cjx.Blocked()))
        + -cjx.AttentionField(cjx.HardmaxAttention(summation=hull))
        + cjx.AttentionField(cjx.UnnormalisedAttention(1.0, summation=cjx.Dense())),
        "Dense": cjx.RescaledField(cjx.SoftmaxAttention(1.0), eye),
        None: cjx.PerceptronField(eye, eye),
    }
    for expected, field in fields.items():
        said, names = said_and_done(monkeypatch, field, 600, 2)
        assert said == expected
        assert (" and ".join(names) or None) == expected


class Silent(cjx.AbstractField):
    """A field of a user's, which keeps one attention that it never asks, and evaluates the other on pairs of tokens."""

    asked: cjx.AbstractAttention
    unasked: cjx.AbstractAttention

    @property
    def space(self):
        return cjx.Euclidean()

    def __call__(self, t, x, args=None):
        return jnp.repeat(self.asked.average(x[::2], None, t), 2, axis=0)

    def check(self, n, d):
        pass


def test_who_is_never_asked_is_not_named(monkeypatch):
    """2,000 tokens would be summed by Blocked, and the thousand of them that are asked about by Dense."""
    field = Silent(cjx.SoftmaxAttention(1.0), cjx.HardmaxAttention(summation=cjx.Hull()))
    assert said_and_done(monkeypatch, field, 2000, 5) == ("Dense", ["Dense"])


def test_queries_too_long_for_a_series_are_seen_before_the_run(monkeypatch):
    """`Auto` looks at the numbers of the start where it can; what it says is what it then does."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    x = sphere_tokens(5, 2048, 2, np.float32)
    for beta, expected in ((1.0, "Harmonic"), (1000.0, "Blocked")):
        field = _with_summations(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x)
        assert said_and_done(monkeypatch, field, 2048, 2) == (expected, [expected])
