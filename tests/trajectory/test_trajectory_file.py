"""Runs in a file: everything comes back bit for bit, and files that hold no run are refused."""

import functools
import json

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
import safetensors.numpy

import clusterjax as cjx
from clusterjax._base.summary import describe
from tests.helpers import CountTraces, as_a_user, assert_close, assert_same, normal, rewrite_sealed, sphere_tokens


X = sphere_tokens(1, 5, 3)
TS = jnp.asarray([0.0, 0.5, 1.0], float)
V = normal(2, 3, 3)
FIELD = cjx.AttentionField(cjx.SoftmaxAttention(2.0, mask=cjx.CausalMask()), V)
# Euler's method compiles fastest.
EULER = {"solver": dfx.Euler(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.25}


class Pair(eqx.Module):
    """A module, as a save function may return it."""

    first: jax.Array
    second: jax.Array


def _many(t, x, args):
    """Arrays of every dtype, in every kind of tree."""
    whole = jnp.sum(x > 0) - 7
    integers = [whole.astype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
    floats = tuple(x[0].astype(dtype) for dtype in ("float16", "bfloat16", "float32", "float64"))
    return {"integers": integers, "floats": floats, "signs": x > 0, "none": None, "waves": {"c": jnp.exp(1j * x[:2])}}


# Each kind of run is made when a test first asks for it, since a run compiles for seconds.
RUNS = {
    "plain": lambda: cjx.simulate(FIELD, X, TS, **EULER),
    "dense": lambda: cjx.simulate(FIELD, X, TS, dense=True, max_steps=64, **EULER),
    "hermite": lambda: cjx.simulate(
        -FIELD, X, TS, dense=True, max_steps=16, solver=cjx.Retract(dfx.Heun()), dt0=0.25,
        stepsize_controller=dfx.ConstantStepSize(),
    ),
    "saved": lambda: cjx.simulate(
        FIELD, X, jnp.asarray([0.0, 1.0, 1e3], float), save=cjx.TokensAnd(_many), event=cjx.clustered_event(0.9),
        **EULER,
    ),
    "noise": lambda: cjx.simulate(
        FIELD, X, TS, noise=0.1, key=jax.random.key(1), dt0=0.5, save=lambda t, x, a: (x[0], [t])
    ),
    "layers": lambda: cjx.iterate(cjx.ResidualLayer(FIELD, 0.1), X, 4, save_every=2),
    "single": lambda: cjx.iterate(cjx.ResidualLayer(FIELD, 0.1), X.astype(jnp.float32), 2),
    "batch": lambda: jax.vmap(
        lambda beta, radius: cjx.simulate(
            cjx.AttentionField(cjx.SoftmaxAttention(beta)), X, TS, dense=True, max_steps=64,
            event=cjx.clustered_event(radius), throw=False, **EULER,
        )
    )(jnp.asarray([1.0, 9.0, 30.0]), jnp.asarray([0.01, 1.9, 0.01])),
}  # fmt: skip


@functools.cache
def run(name):
    with np.errstate(all="ignore"):
        return RUNS[name]()


def kept(traj, tmp_path):
    traj.save(tmp_path / "run")
    return cjx.Trajectory.load(tmp_path / "run")


def arrays_of(tree):
    return [np.asarray(leaf) for leaf in jtu.tree_leaves(tree)]


# --- definition: a run comes back as it was


@pytest.mark.exhaustive_cases("dense", "hermite", "noise", "plain", "batch")
@pytest.mark.parametrize("name", RUNS)
def test_everything_comes_back(name, tmp_path):
    traj = run(name)
    with as_a_user():
        again = kept(traj, tmp_path)
    parts = ("ts", "xs", "stats", "result", "t1", "x1", "saved")
    everything = lambda run: {part: getattr(run, part) for part in parts} | {"settings": run.settings()}
    before, after = everything(traj), everything(again)
    assert jtu.tree_structure(before) == jtu.tree_structure(after)
    for old, new in zip(arrays_of(before), arrays_of(after), strict=True):
        assert old.dtype == new.dtype and old.shape == new.shape
        assert old.tobytes() == new.tobytes()
    # A file of a loaded run is the same file.
    again.save(tmp_path / "again")
    if name != "layers":
        assert (tmp_path / "again").read_bytes() == (tmp_path / "run").read_bytes()


@pytest.mark.exhaustive
def test_the_sample_has_what_a_run_can_be():
    """Events, times that were not reached, and several verdicts are among these runs."""
    saved, batch = run("saved"), run("batch")
    assert bool(dfx.is_event(saved.result)) and np.isnan(np.asarray(saved.xs)[-1]).all()
    assert saved.saved["integers"][0][-1] == -1 and saved.saved["integers"][-1][-1] == np.uint64(2**64 - 1)
    assert len(set(arrays_of(batch.result)[0].tolist())) == 2


@pytest.mark.exhaustive
def test_between_the_save_times(tmp_path):
    """Polynomials and layers come back, but a field does not, since it is code."""
    for name in ("dense", "hermite"):
        assert_close(kept(run(name), tmp_path).at([0.1, 0.7]), run(name).at([0.1, 0.7]))
    layers = run("layers")
    assert_same(kept(layers, tmp_path).at(3), layers.at(3))
    batch = eqx.filter_vmap(lambda traj: traj.at(jnp.asarray(0.01)))
    assert_same(batch(kept(run("batch"), tmp_path)), batch(run("batch")))
    with pytest.raises(ValueError, match=r"^at needs the tokens between the save times, but the file keeps"):
        kept(run("plain"), tmp_path).at(0.7)


def test_polynomials_take_the_room_of_the_steps_that_were_taken(tmp_path):
    traj = run("dense")
    traj.save(tmp_path / "run")
    arrays = safetensors.numpy.load((tmp_path / "run").read_bytes())
    assert arrays["between.ts"].shape[0] == int(traj.stats["num_accepted_steps"]) + 1 < 64


def test_a_run_goes_on_from_a_file(tmp_path):
    """A run continues from the end of a saved run as from the end of the run itself."""
    again = kept(run("plain"), tmp_path)
    assert_close(again.xs[-1], run("plain").x1)
    later = lambda traj: cjx.simulate(FIELD, traj.x1, TS + 1, **EULER).xs
    assert_same(later(again), later(run("plain")))


# --- settings


def test_settings_tell_the_parameters_and_the_options():
    told = run("saved").settings()
    field = told["field"]
    assert field["class"] == "AttentionField" and field["attention"]["class"] == "SoftmaxAttention"
    assert float(field["attention"]["beta"]) == 2.0 and field["attention"]["mask"] == {"class": "CausalMask"}
    assert_same(field["value"], V)
    assert field["space"] == {"class": "Sphere"} and field["masses"] is None
    assert told["solver"]["class"] == "Euler" and told["stepsize_controller"]["class"] == "ConstantStepSize"
    assert told["save"]["fn"] == {"function": f"{__name__}._many"}
    assert float(told["event"]["cond_fn"]["condition"]["radius"]) == 0.9
    assert set(told["versions"]) == {"clusterjax", "jax", "diffrax", "equinox", "numpy"}
    layers = run("layers").settings()
    assert float(layers["layer"]["step"]) == 0.1 and (layers["depth"], layers["save_every"]) == (4, 2)


@pytest.mark.exhaustive
def test_settings_tell_the_noise_and_its_key():
    noisy = run("noise").settings()
    assert float(noisy["noise"]) == 0.1 and noisy["key"]["key"] in ("fry", "threefry2x32")


def test_settings_of_a_batch_have_the_parameters_of_each_run():
    assert_same(run("batch").settings()["field"]["attention"]["beta"], [1.0, 9.0, 30.0])


@pytest.mark.exhaustive
def test_large_arrays_are_kept_where_the_run_needs_them_anyway():
    """For `at` a plain run needs the field and its arguments; with a save function only their shape is kept."""
    large = jnp.zeros((3, 2**14))
    field = cjx.FunctionField(lambda t, x, args: x * args[0, 0])
    assert cjx.simulate(field, X, TS[:2], large, **EULER).settings()["args"].shape == large.shape
    told = cjx.simulate(field, X, TS[:2], large, save=lambda t, x, args: t, **EULER).settings()
    assert told["args"] == {"shape": [3, 2**14], "dtype": "float64"}


@pytest.mark.exhaustive
def test_no_value_compiles_again_and_runs_of_two_lambdas_stack():
    body = CountTraces(lambda beta: cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), X, TS[:2], **EULER))
    compiled = jax.jit(body)
    first, second = compiled(1.0), compiled(2.0)
    assert body.traces == 1 and float(second.settings()["field"]["attention"]["beta"]) == 2.0
    assert jtu.tree_structure(first) == jtu.tree_structure(second)
    ends = [cjx.simulate(FIELD, X, TS[:2], save=lambda t, x, args: t, **EULER) for _ in range(2)]
    assert jtu.tree_map(lambda *leaves: jnp.stack(leaves), *ends).xs.shape == (2, 2)


# --- errors


@pytest.fixture
def path(tmp_path):
    run("layers").save(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("part", "value", "message"),
    (
        ("tree", {"ts": None}, r"^path must be a file of this library, but in .* tree"),
        ("between", {"kind": "field", "class": "os.system"}, r"^path must be a file of this library, but in .*between"),
        ("setup", "beta", r"^path must be a file of this library, but in .*setup"),
        ("result", {"codes": {"array": "result", "dtype": "int64"}, "names": {"0": "lost"}}, r"^path must be"),
    ),
)
def test_headers_that_hold_something_else(path, part, value, message):
    rewrite_sealed(path, **{part: value})
    with pytest.raises(ValueError, match=message):
        cjx.Trajectory.load(path)


@pytest.mark.parametrize(
    "node",
    (
        {},
        {"array": "none", "dtype": "float64"},
        {"array": "xs", "dtype": "float32"},
        {"class": "os"},
        {"int": 1.5},
        {"dict": [["a"]]},
        {"list": {}},
        {"list": [{"int": "a"}]},
    ),
)
def test_nodes_that_are_none(path, node):
    tree = {name: None for name in ("ts", "stats", "t1", "x1", "saved")} | {"xs": node}
    rewrite_sealed(path, tree=tree | {"stats": {"dict": []}})
    with pytest.raises(ValueError, match=r"^path must be a whole run, but .* holds .*; name another file"):
        cjx.Trajectory.load(path)


def test_a_verdict_that_this_diffrax_does_not_have(path):
    codes = {"array": "result", "dtype": str(arrays_of(run("layers").result)[0].dtype)}
    rewrite_sealed(path, result={"codes": codes, "names": {"0": "bored"}})
    with pytest.raises(ValueError, match=r"^path must be of a run whose result diffrax has, but .* 'bored'"):
        cjx.Trajectory.load(path)


def test_polynomials_that_this_diffrax_does_not_have(tmp_path):
    """The tokens come back all the same."""
    run("dense").save(tmp_path / "run")
    data = (tmp_path / "run").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["clusterjax sealed"]
    rewrite_sealed(tmp_path / "run", between=json.loads(header)["between"] | {"class": "_Tsit9Interpolation"})
    again = cjx.Trajectory.load(tmp_path / "run")
    assert_same(again.xs, run("dense").xs)
    with pytest.raises(ValueError, match="^at needs .* but this diffrax has no _Tsit9Interpolation"):
        again.at(0.5)


def test_what_a_file_cannot_hold(tmp_path):
    traj = run("layers")
    keys = eqx.tree_at(lambda traj: traj.xs, traj, jax.random.split(jax.random.key(0), 3))
    with as_a_user(), pytest.raises(ValueError, match=r"^xs must hold arrays of numbers, but it holds a PRNG key"):
        keys.save(tmp_path / "run")
    odd = eqx.tree_at(lambda traj: traj.xs, traj, {3: traj.xs})
    with as_a_user(), pytest.raises(ValueError, match=r"^xs must have keys that are strings, but they are"):
        odd.save(tmp_path / "run")
    narrow = eqx.tree_at(lambda traj: traj.xs, traj, traj.xs.astype("float8_e5m2"))
    with as_a_user(), pytest.raises(ValueError, match=r"^xs must be of a dtype that safetensors has, but it is flo"):
        narrow.save(tmp_path / "run")
    with pytest.raises(ValueError, match="^the trajectory must have a value, but it is traced; call"):
        jax.jit(lambda traj: traj.save(tmp_path / "run"))(run("single"))
    for name in (3, None, "", "a\0b"):
        with as_a_user(), pytest.raises(ValueError, match="^path must be a path, but"):
            traj.save(name)
    assert list(tmp_path.iterdir()) == []


def test_a_module_comes_back_as_a_dictionary(tmp_path):
    pairs = Pair(jnp.arange(3.0), jnp.ones((3, 2)))
    again = kept(eqx.tree_at(lambda run: run.saved, run("layers"), pairs, is_leaf=lambda leaf: leaf is None), tmp_path)
    assert set(again.saved) == {"first", "second"}
    assert_same(again.saved["first"], pairs.first)


def test_without_x64_floats_are_rounded_with_one_warning_and_integers_kept_or_refused(tmp_path, monkeypatch):
    traj = run("layers")
    traj.save(tmp_path / "run")
    wide = eqx.tree_at(lambda traj: traj.saved, traj, jnp.asarray([2**40]), is_leaf=lambda leaf: leaf is None)
    with as_a_user():
        wide.save(tmp_path / "wide")
    monkeypatch.setattr("clusterjax._base.numerics._WARNED", set())
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.warns(UserWarning, match=r'holds is float64, but jax rounds it.*"jax_enable_x64", True'):
            again = cjx.Trajectory.load(tmp_path / "run")
        assert again.xs.dtype == jnp.float32
        with pytest.raises(ValueError, match="^path must fit the 32 bits of jax, but saved in .* holds"):
            cjx.Trajectory.load(tmp_path / "wide")
    finally:
        jax.config.update("jax_enable_x64", True)
    assert_close(again.xs.astype(jnp.float64), np.asarray(traj.xs, np.float32).astype(float))


def test_what_is_told_of_each_kind_of_object():
    """NumPy's numbers become arrays, functions their names, and other objects their classes; nothing is called."""
    arrays = []
    told = describe(
        {"a": np.float64(0.5), "b": (1, None, True, "x"), "c": jnp.sin, "d": dfx.Tsit5, "e": object(), 3: [2.5]}, arrays
    )
    assert told == {
        "a": {"array": 0}, "b": [1, None, True, "x"], "c": {"function": "jax.numpy.sin"},
        "d": {"class": "Tsit5"}, "e": {"class": "object"}, "3": [2.5],
    }  # fmt: skip
    assert_same(arrays, [0.5])
    assert describe(np.asarray(["a"]), arrays) == {"shape": [1], "dtype": "<U1"}
