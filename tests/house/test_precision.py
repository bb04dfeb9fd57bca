"""Products of float32 have full precision; accelerators round factors to ten bits unless a precision is requested.

A CPU does not round, so that no other test would notice: the requested precision is read from the source and from the
traced programs.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import clusterjax as cjx
from clusterjax import experiments, sentiment
from clusterjax.design import _hold, _recover as _least_squares
from tests import transformer_cases
from tests.experiments import own
from tests.helpers import sphere_tokens


PACKAGE = Path(cjx.__file__).parent
PRODUCTS = {"einsum", "matmul", "dot", "tensordot", "vdot", "inner", "convolve", "cov", "corrcoef", "dot_general"}
# Modules with both libraries in which `@` multiplies NumPy arrays.
OF_NUMPY = {
    "_dynamics/modes.py", "_limits/sphere.py", "_model/causal_density.py", "_observables/clusters.py",
    "_observables/equiangular.py", "_observables/spectra.py", "design/_recover.py", "hardmax/_certificate.py",
    "hardmax/_choose_leaders.py", "hardmax/_limit.py", "phase/_branch.py", "probe/measures/sinks.py",
    "sentiment/_explain.py",
}  # fmt: skip


def sources(words: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules of the library that contain `words`; experiments are excluded, because they run under
    `jax.default_matmul_precision`, and so are plots.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text("utf-8")
        if not name.startswith(("experiments/", "plot/")) and re.search(words, text):
            yield name, ast.parse(text)


def is_of_jax(call: ast.AST) -> bool:
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in PRODUCTS
        and ast.unparse(call.func.value) in {"jnp", "jax.numpy", "lax", "jax.lax"}
    )


def test_every_product_of_jax_names_its_precision():
    bare = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, tree in sources(rf"\b(jnp|numpy|lax)\.({'|'.join(PRODUCTS)})\b")
        for node in ast.walk(tree)
        if is_of_jax(node) and not any(word.arg == "precision" for word in node.keywords)  # pyright: ignore
    ]
    assert not bare, f"take matmul, einsum or tensordot of clusterjax._base.numerics: {bare}"


def test_the_operator_is_of_numpy():
    """`@` cannot name a precision, so it may only multiply NumPy arrays."""
    found = set()
    for name, tree in sources(r" @=? "):
        imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        operators = (node.op for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign))
        if "jax.numpy" in imports and any(isinstance(op, ast.MatMult) for op in operators):
            found.add(name)
    assert found == OF_NUMPY


def programs_within(jaxpr) -> Iterator[jax.extend.core.Jaxpr]:
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    yield from programs_within(part)


def products_of(fn, *args) -> list[tuple]:
    """The precision of every product of floats in the program of `fn(*args)`, including derivatives and loops."""
    arrays, rest = eqx.partition(args, eqx.is_array)
    traced = jax.make_jaxpr(lambda arrays: eqx.filter(fn(*eqx.combine(arrays, rest)), eqx.is_array))(arrays)
    return [
        equation.params["precision"]
        for program in programs_within(traced.jaxpr)
        for equation in program.eqns
        if equation.primitive.name == "dot_general" and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.floating)
    ]


X = sphere_tokens(0, 12, 3, jnp.float32)
TIMES = jnp.linspace(0, 1, 3, dtype=jnp.float32)
FORM = jnp.asarray([[1.0, 0.2, 0.0], [0.0, 1.0, 0.3], [0.1, 0.0, 0.5]], jnp.float32)


def field(attention=cjx.SoftmaxAttention, **options):
    return cjx.AttentionField(attention(jnp.float32(2.0), query_key=FORM, **options), value=FORM)


def velocity(field):
    return products_of(lambda x: field(jnp.float32(0), x), X)


def sums(summation, **options):
    return lambda: velocity(field(summation=summation, **options))


def run(solver, **options):
    return lambda: products_of(lambda x: cjx.simulate(field(), x, TIMES, solver=solver, **options).xs, X)


def classifier(d):
    ones = lambda *shape: jnp.ones(shape, jnp.float32)
    model = sentiment.HardmaxClassifier(ones(20, 2, d), ones(2, d), 0.1, 1.0, ones(2, d, d), depth=2)
    ids, counts = jnp.arange(10).reshape(2, 5), ones(2, 5)
    by_hardmax = eqx.filter_grad(lambda model: jnp.sum(model.logits(ids, counts) ** 2))
    return products_of(by_hardmax, model) + products_of(lambda model: model.softmax_logits(ids, counts, 3.0), model)


def block(relative):
    block = transformer_cases.in_dtype(transformer_cases.block_of(relative=relative), jnp.float32)
    return products_of(lambda x: block(x), transformer_cases.X.astype(jnp.float32))


def density(attention):
    field = cjx.MeanField(attention, FORM, d=3, degree=8)
    return products_of(lambda c: field(jnp.float32(0), c), jnp.ones((9, 18), jnp.float32))


def damped(rows, columns):
    f32 = lambda *shape: jnp.ones(shape, jnp.float32)
    return products_of(_least_squares._damped, f32(rows), f32(rows, columns), f32(), f32())


CASES = {
    "dense": sums(cjx.Dense()),
    "blocked": sums(cjx.Blocked(4), mask=cjx.CausalMask()),
    "harmonic": sums(cjx.Harmonic(1e-4)),
    "unnormalised": lambda: velocity(field(cjx.UnnormalisedAttention)),
    "gradient": lambda: products_of(jax.grad(lambda x: jnp.sum(field()(jnp.float32(0), x) ** 2)), X),
    "batch": lambda: products_of(jax.vmap(lambda x: field()(jnp.float32(0), x)), jnp.stack([X] * 40)),
    "heads": lambda: velocity(cjx.MultiHeadField(jnp.float32(1), jnp.stack([FORM] * 2), jnp.stack([FORM] * 2))),
    "Tsit5": run(None),
    "Rodas5P": run(cjx.Rodas5P()),
    "Kvaerno5": run(cjx.Retract(dfx.Kvaerno5())),
    "hardmax": lambda: products_of(lambda x: cjx.hardmax.HardmaxLayer(1.0, FORM)(0, x), X),
    "classifier, lanes last": lambda: classifier(2),
    "classifier, lanes first": lambda: classifier(40),
    "hold": lambda: products_of(_hold.violations, X, jnp.ones((2, 12), jnp.float32) / 12, jnp.float32(0.1)),
    "damped, wide": lambda: damped(3, 5),
    "damped, tall": lambda: damped(5, 3),
    "collapse": lambda: products_of(cjx.neural_collapse, X, jnp.arange(12) % 3, FORM),
    "cosines": lambda: products_of(cjx.pairwise_cosine, X),
    "energy": lambda: products_of(cjx.interaction_energy, X, jnp.float32(2)),
    "block": lambda: block(False),
    "rotary block": lambda: block("rotary"),
    "mean field": lambda: density(cjx.UnnormalisedAttention(jnp.float32(1.5), query_key=FORM)),
    "zonal mean field": lambda: density(cjx.SoftmaxAttention(jnp.float32(1.5))),
}


@pytest.mark.exhaustive_cases("Kvaerno5", "Rodas5P", "Tsit5", "harmonic")
@pytest.mark.parametrize("name", CASES)
def test_programs_multiply_in_full_precision(name):
    found = CASES[name]()
    assert found, "no product was found in the program"
    assert set(found) == {(lax.Precision.HIGHEST, lax.Precision.HIGHEST)}


def test_a_product_without_precision_is_found():
    """The product is inside a loop inside a derivative."""
    loop = lambda x: lax.fori_loop(0, 3, lambda _, y: x @ y, x)
    assert (lax.Precision.HIGHEST,) * 2 not in products_of(jax.jacfwd(loop), FORM)
    assert None in products_of(jax.jacfwd(loop), FORM)


def test_experiments_run_in_full_precision(tmp_path):
    seen, precision = [], lambda: getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009

    def run(settings, say):
        seen.append(precision())
        return own.run(settings, say)

    before = precision()
    experiments.reproduce([own.experiment(run=run)], tmp_path, experiments.Settings(starts=2), say=lambda line: None)
    assert seen == ["highest"] and precision() == before
