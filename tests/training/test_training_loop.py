"""The training loop minimises the loss, and a killed run continues bit for bit."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import safetensors.numpy

from clusterjax._files.lock import locked
from clusterjax._training.loop import Batches, stored_run, train
from tests.helpers import as_a_user


class Line(eqx.Module):
    """y = <slope, x> + offset."""

    slope: jax.Array
    offset: jax.Array
    scale: jax.Array


LINE = Line(*(jnp.asarray(value, float) for value in (np.zeros(3), 0.0, 2.0)))
SLOPE = np.array([1.0, -2.0, 0.5])
SETTINGS = {"rate": 0.1, "words": 7}


def data(rows, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return jnp.asarray(x, float), jnp.asarray(x @ SLOPE + 0.25, float)


def squares(model, batch, key):
    """Returns a loss with noise that a resumed run must draw again in the same way."""
    x, y = batch
    missed = x @ model.slope + model.offset - y + 1e-3 * jr.normal(key, y.shape)
    return jnp.mean(missed**2), {"missed": jnp.mean(jnp.abs(missed))}


BATCHES = Batches((data(40), data(23, 1)), 8)
OPTIMISER = optax.adam(0.1)


def run(epochs=4, batches=BATCHES, **options):
    options = {"optimiser": OPTIMISER, "key": jr.key(1), "settings": SETTINGS, **options}
    return train(LINE, options.pop("loss", squares), batches, epochs=epochs, **options)


def slope_error(model):
    return {"closeness": -float(np.abs(np.asarray(model.slope) - SLOPE).max())}


same = eqx.tree_equal


def interrupt(after):
    """A `say` that ends the run once `after` epochs are done."""

    def say(line):
        if line.startswith(f"epoch {after} of"):
            raise KeyboardInterrupt

    return say


@pytest.mark.exhaustive
def test_it_finds_the_line():
    lines = []
    done = run(60, say=lines.append)
    np.testing.assert_allclose(done.model.slope, SLOPE, atol=0.01)
    np.testing.assert_allclose(done.model.offset, 0.25, atol=0.01)
    assert len(lines) == len(done.history) == 60 and re.match(r"epoch 1 of 60: loss \d.*, missed \d", lines[0])
    assert (done.best_epoch, done.stopped_early) == (60, False) and same(done.model, done.last)


def test_each_epoch_sees_every_row_but_those_that_fill_no_batch():
    """All rows differ, so that the batches of an epoch show which rows it used."""
    rows = jnp.asarray([2.0**k for k in range(11)], float)
    seen = []

    def loss(model, batch, key):
        jax.debug.callback(lambda values: seen.append(values.tolist()), batch)
        return jnp.sum(model.slope**2), {}

    train(LINE, loss, Batches((rows,), 4), optimiser=OPTIMISER, epochs=3, key=jr.key(0))
    jax.effects_barrier()
    epochs = [sum(seen[k : k + 2], []) for k in range(0, 6, 2)]
    assert len(seen) == 6 and all(len(set(epoch)) == 8 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_only_what_is_trainable_is_trained():
    spec = eqx.tree_at(lambda tree: tree.slope, jax.tree_util.tree_map(lambda _: False, LINE), True)
    done = run(2, trainable=spec)
    assert np.any(np.asarray(done.model.slope)) and done.model.offset == 0 and done.model.scale == 2


@pytest.mark.exhaustive_cases("1")
@pytest.mark.parametrize("after", (1, 2, 3))
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, after):
    path, options = tmp_path / "deep" / "checkpoint", {"evaluate": slope_error, "monitor": "closeness"}
    whole = run(**options)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=path, say=interrupt(after), **options)
    lines = []
    done = run(checkpoint=path, say=lines.append, **options)
    assert lines[0] == f"resuming after epoch {after} of 4" and len(lines) == 5 - after
    assert same((done.model, done.last), (whole.model, whole.last))
    assert done.history == whole.history and len(done.seconds) == 4 and done.best_epoch == whole.best_epoch
    assert same(run(checkpoint=path, **options).model, whole.model)  # a finished run stays as it is


def test_other_settings_are_refused_by_name(tmp_path):
    run(1, checkpoint=tmp_path / "checkpoint")
    content = (tmp_path / "checkpoint").read_bytes()
    with pytest.raises(ValueError, match=r"of this run with rate = 0.2, but .* of one with rate = 0.1; remove it"):
        run(2, checkpoint=tmp_path / "checkpoint", settings=SETTINGS | {"rate": 0.2})
    with pytest.raises(ValueError, match="rate = None, words = None"):
        run(2, checkpoint=tmp_path / "checkpoint", settings=None)
    assert (tmp_path / "checkpoint").read_bytes() == content


def test_what_follows_from_other_settings_is_named_alone(tmp_path):
    """The digest of the data differs with each seed, so that the error names the seed alone."""
    run(1, checkpoint=tmp_path / "checkpoint", settings={"seed": 0, "data": "abc"})
    with pytest.raises(ValueError, match=r"of this run with seed = 1, but .* of one with seed = 0; remove it"):
        run(1, checkpoint=tmp_path / "checkpoint", settings={"seed": 1, "data": "def"})
    with pytest.raises(ValueError, match=r"of this run with data = def, but .* of one with data = abc; remove it"):
        run(1, checkpoint=tmp_path / "checkpoint", settings={"seed": 0, "data": "def"})


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(safetensors.numpy.save({"0": np.zeros(3)}))
    with pytest.raises(ValueError, match="checkpoint must be a file of this library, but .* is not; remove it"):
        run(1, checkpoint=path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match="checkpoint must be a file of this library"):
        run(1, checkpoint=path)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    run(1, checkpoint=tmp_path / "checkpoint")
    other = Line(jnp.zeros(4), jnp.zeros(()), jnp.zeros(()))
    with pytest.raises(ValueError, match="must hold the arrays of this model"):
        train(
            other, squares, BATCHES, optimiser=OPTIMISER, epochs=2, key=jr.key(1), settings=SETTINGS,
            checkpoint=tmp_path / "checkpoint",
        )  # fmt: skip


@pytest.mark.parametrize("call", ("os.fsync", "os.replace"))
def test_disk_full_at_a_checkpoint_keeps_the_former_one(tmp_path, monkeypatch, call):
    path = tmp_path / "checkpoint"
    whole = run(3)
    with pytest.raises(KeyboardInterrupt):
        run(3, checkpoint=path, say=interrupt(1))
    former = path.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call, full)
    with pytest.raises(ValueError, match="No space left on device.*; make room and run again"):
        run(3, checkpoint=path)
    monkeypatch.undo()
    assert path.read_bytes() == former and list(tmp_path.iterdir()) == [path]
    assert same(run(3, checkpoint=path).model, whole.model)


def test_a_checkpoint_that_can_have_no_folder_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = []
    with pytest.raises(ValueError, match=r"checkpoint must be in a folder that can be written.*; choose another\."):
        run(1, checkpoint=tmp_path / "file" / "checkpoint", say=said.append)
    assert said == [] and (tmp_path / "file").read_text() == "in the way"


def scores(*values):
    """An `evaluate` that gives these numbers in turn."""
    left = list(values)
    return lambda model: {"score": left.pop(0)}


def test_best_epoch_is_kept_and_patience_ends_the_run(tmp_path):
    after = [run(k).model for k in (1, 2)]
    options = {"monitor": "score", "patience": 2, "checkpoint": tmp_path / "checkpoint"}
    done = run(9, evaluate=scores(0.5, 0.7, 0.6, 0.7), **options)
    assert (done.best_epoch, done.stopped_early, len(done.history)) == (2, True, 4)
    assert same(done.model, after[1]) and not same(done.last, after[1]) and not same(after[0], after[1])
    again = run(9, evaluate=scores(), **options)  # the run is finished: nothing is evaluated again
    assert again.stopped_early and same(again.model, done.model)


def test_monitor_that_is_not_measured():
    with pytest.raises(ValueError, match="monitor must be one of .*'loss'.*, but it is 'beauty'"):
        run(1, monitor="beauty")


def test_loss_that_is_not_finite_ends_the_run(tmp_path):
    path = tmp_path / "checkpoint"
    run(1, checkpoint=path)
    former = path.read_bytes()

    def broken(model, batch, key):
        return jnp.log(-1 - jnp.sum(model.slope**2)), {}

    with pytest.raises(FloatingPointError, match="loss must stay finite, but it is nan in epoch 2; lower"):
        run(3, loss=broken, checkpoint=path)
    assert path.read_bytes() == former


@pytest.mark.parametrize(
    ("parts", "size", "words"),
    (((data(7),), 8, "at most the number of rows"), ((data(9),), 0, "positive integer"), ((data(9),), 2.5, "positive")),
    ids=("few", "zero", "fraction"),
)
def test_batches_that_cannot_be(parts, size, words):
    with as_a_user(), pytest.raises(ValueError, match=f"batch_size must be .*{words}"):
        Batches(parts, size)


def test_no_more_steps_are_made_than_asked_for():
    """With seven batches in an epoch and ten steps, the last epoch has three steps, with means over three and the
    program of the others; a run whose steps fill its epochs does not change."""
    traced = []

    def loss(model, batch, key):
        traced.append(1)
        return squares(model, batch, key)

    whole, cut = run(epochs=2, loss=loss), run(epochs=2, loss=loss, steps=10)
    once = len(traced)
    filled = run(epochs=2, loss=loss, steps=2 * BATCHES.steps)
    assert BATCHES.steps == 7 and len(traced) == once
    assert same(filled.last, whole.last) and filled.history == whole.history
    assert cut.history[0] == whole.history[0] and not same(cut.last, whole.last)
    assert 0 < cut.history[1]["missed"] < cut.history[0]["missed"]


@pytest.mark.exhaustive
def test_the_last_epoch_is_the_beginning_of_a_whole_one():
    """Each further step of the second epoch is a step of gradient descent on the next batch."""
    seen = []
    loss = lambda model, batch, key: (jnp.sum(model.slope * jnp.mean(batch[0], axis=0)), {"x": jnp.mean(batch[0])})
    for steps in range(8, 15):
        done = run(epochs=2, loss=loss, steps=steps, optimiser=optax.sgd(1.0))
        seen.append((np.asarray(done.last.slope), done.history[1]["x"] * (steps - 7)))
    moves = -np.diff([slope for slope, _ in seen], axis=0)
    means = np.diff([total for _, total in seen])
    np.testing.assert_allclose(moves.mean(axis=1), means, atol=1e-12)
    assert np.abs(moves).min() > 0


def test_a_finished_run_is_not_made_longer(tmp_path):
    path = tmp_path / "checkpoint"
    run(2, checkpoint=path, settings=SETTINGS | {"epochs": 2})
    assert stored_run(path)[1:] == (2, 2) and stored_run(tmp_path / "none") is None
    with pytest.raises(ValueError, match="of this run with epochs = 3, but .* of one with epochs = 2; remove it, or"):
        run(3, checkpoint=path, settings=SETTINGS | {"epochs": 3})


@pytest.mark.exhaustive
def test_a_checkpoint_that_another_process_writes_is_left_alone(tmp_path):
    path = tmp_path / "state"
    with locked(tmp_path, "checkpoint", name=".state.clusterjax.lock", shown=path):
        with pytest.raises(ValueError, match=r"^checkpoint must be used by one run at a time, but another process is"):
            run(checkpoint=path)
    run(epochs=1, checkpoint=path)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
