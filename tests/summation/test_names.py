"""`stats["summation"]` names the summation in use, for every summation, mask and kind, or the run refuses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.simulate import _with_summations
from clusterjax._summation import ExponentialSums, HardmaxSums, Names, recorded
from clusterjax._summation.harmonic import summation as expand
from tests.helpers import as_a_user, sphere_tokens


CLASSES = (cjx.Dense, cjx.Blocked, cjx.Harmonic, cjx.Hull, cjx.Auto)
DEVICES = jax.sharding.Mesh(jax.devices()[:1], ("rows",))
SUMMATIONS = {kind.__name__: kind() for kind in CLASSES} | {
    f"Sharded {kind.__name__}": cjx.Sharded(kind(), "rows", DEVICES) for kind in CLASSES if kind is not cjx.Hull
}
KINDS: dict[str, Callable[..., Any]] = {
    "softmax": lambda **options: cjx.SoftmaxAttention(1.0, **options),
    "unnormalised": lambda **options: cjx.UnnormalisedAttention(1.0, **options),
    "hardmax": cjx.HardmaxAttention,
}


@pytest.fixture(autouse=True)
def one_degree(monkeypatch):
    """Replaces the degrees of each series by one, to trace less."""
    for sizes, (_, general) in expand.DEGREES.items():
        monkeypatch.setitem(expand.DEGREES, sizes, (general[:1], general[:1]))


@pytest.fixture
def called(monkeypatch):
    """Records the summations whose methods are called; in a chain of calls the last one sums."""
    names = []
    for kind in (cjx.Dense, cjx.Blocked, cjx.Harmonic, cjx.Hull):
        for method in {"exponential", "hardmax"} & set(vars(kind)):

            def call(self, *args, kind=kind, method=method):
                names.append(kind.__name__)
                queries, tokens, values = args[:3]
                rows, total = jnp.zeros_like(queries[:, 0]), jnp.zeros_like(tokens if values is None else values)
                return ExponentialSums(rows, rows, total) if method == "exponential" else HardmaxSums(rows, total)

            monkeypatch.setattr(kind, method, call)
    return names


def said(field, n, d, dtype: Any = jnp.float32):
    """Returns the name that a run of `n` tokens reports; nothing is compiled."""
    names = Names()
    with jax.numpy_dtype_promotion("standard"):  # the ring of devices is written for 32 bits
        evaluate = lambda x: recorded(field, names)(jnp.asarray(0.0, dtype), x)
        jax.eval_shape(evaluate, jax.ShapeDtypeStruct((n, d), dtype))
    return " and ".join(names.used) or None


def refused(name: str, kind: str, mask: cjx.AbstractMask) -> str | None:
    """Returns the beginning of the error about a summation that does not serve this attention, else None."""
    if ("Hull" in name) != (kind == "hardmax") and ("Hull" in name or "Harmonic" in name):
        inner = ".inner" if "Sharded" in name else ""
        return f"summation{inner} must be one that " + ("searches" if kind == "hardmax" else "sums exponentials")
    if ("Hull" in name or "Harmonic" in name) and isinstance(mask, cjx.WindowMask | cjx.MatrixMask):
        return f"mask of {name.split()[0]} must be FullMask or CausalMask, but it is a {type(mask).__name__}; take"
    return None


@pytest.mark.exhaustive_cases("Auto-softmax", "Sharded Harmonic-softmax", "Sharded Harmonic-unnormalised")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SUMMATIONS)
def test_a_run_says_what_sums_or_refuses_it(called, name, kind):
    for mask in (cjx.FullMask(), cjx.CausalMask(), cjx.WindowMask(3), cjx.MatrixMask(np.ones((600, 600), bool))):
        words = refused(name, kind, mask)
        if words is not None:
            with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
                KINDS[kind](mask=mask, summation=SUMMATIONS[name])
            continue
        field = cjx.AttentionField(KINDS[kind](mask=mask, summation=SUMMATIONS[name]))
        if name != "Auto":
            inner = name.split()[-1]
            expected = f"Sharded({inner})" if "Sharded" in name else inner
            assert name == "Sharded Auto" or said(field, 600, 2) == expected
            continue
        for n, d in ((600, 2),) if isinstance(mask, cjx.MatrixMask) else ((600, 2), (600, 5), (70_000, 2), (70_000, 5)):
            called.clear()
            jax.eval_shape(lambda x, field=field: field(jnp.float32(0), x), jax.ShapeDtypeStruct((n, d), jnp.float32))
            assert said(field, n, d) == called[-1]


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
    """A run, a field of several heads and the sum itself refuse the tokens in the same words."""
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


@pytest.mark.exhaustive_cases("Harmonic", "Hull", "Sharded Harmonic")
@pytest.mark.parametrize("name", SUMMATIONS)
def test_forward_mode_is_as_supports_says(name):
    summation = SUMMATIONS[name]
    kind = "softmax" if isinstance(summation, cjx.AbstractExponentialSum) else "hardmax"
    x = sphere_tokens(2, 16, 2)
    average = lambda x: KINDS[kind](summation=summation).average(x, None)
    if summation.supports.forward_mode:
        jax.jvp(average, (x,), (jnp.ones_like(x),))
        return
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(average, (x,), (jnp.ones_like(x),))


class Slow(cjx.AbstractExponentialSum):
    """A summation of a user, in one class."""

    @property
    def supports(self):
        return cjx.Support(dimensions=(2,))

    def exponential(self, queries, tokens, values, masses, mask):
        return cjx.Dense().exponential(queries, tokens, values, masses, mask)


def test_a_summation_of_a_user_sums_is_named_and_refuses_what_it_does_not_serve():
    x = sphere_tokens(1, 6, 2)
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, summation=Slow()))
    ts, plain = jnp.asarray([0.0, 1.0]), cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    np.testing.assert_allclose(field(0.0, x), plain(0.0, x), atol=1e-12)
    assert said(field, 6, 2) == "Slow"
    with pytest.raises(ValueError, match="^tokens of Slow must be of dimension 2, but theirs is 3"):
        cjx.simulate(field, sphere_tokens(1, 6, 3), ts)
    words = "summation must be one that searches for the largest score, but it is a Slow"
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        cjx.HardmaxAttention(summation=Slow())


class Silent(cjx.AbstractField):
    """A field that never evaluates one attention, and evaluates the other on every second token."""

    used: cjx.AbstractAttention
    unused: cjx.AbstractAttention

    @property
    def space(self):
        return cjx.Euclidean()

    def __call__(self, t, x, args=None):
        return jnp.repeat(self.used.average(x[::2], None, t), 2, axis=0)

    def check(self, n, d):
        pass


@pytest.mark.exhaustive
def test_sums_of_fields_name_each_summation_and_unused_ones_are_not_named():
    """`Auto` would take Blocked for 2,000 tokens, and takes Dense for the thousand tokens that are used."""
    soft = lambda summation: cjx.AttentionField(cjx.SoftmaxAttention(1.0, summation=summation))
    hull = cjx.AttentionField(cjx.HardmaxAttention(summation=cjx.Hull()))
    eye = np.eye(2)
    heads = cjx.MultiHeadField(1.0, np.stack([eye, eye]), np.stack([eye, eye]), summation=cjx.Harmonic())
    for expected, field, n, d in (
        ("Harmonic", heads, 600, 2),
        ("Blocked and Hull and Dense", 2.0 * soft(cjx.Blocked()) + -hull + soft(cjx.Dense()), 600, 2),
        ("Dense", cjx.RescaledField(cjx.SoftmaxAttention(1.0), eye), 600, 2),
        (None, cjx.PerceptronField(eye, eye), 600, 2),
        ("Dense", Silent(cjx.SoftmaxAttention(1.0), cjx.HardmaxAttention(summation=cjx.Hull())), 2000, 5),
    ):
        assert said(field, n, d) == expected


def test_queries_too_long_for_a_series_are_seen_before_the_run(monkeypatch):
    """`Auto` uses the norms of the initial queries where they are known."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    x = sphere_tokens(5, 2048, 2, np.float32)
    for beta, expected in ((1.0, "Harmonic"), (1000.0, "Blocked")):
        field = _with_summations(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x)
        assert said(field, 2048, 2) == expected
