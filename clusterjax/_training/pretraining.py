"""Pre-training on texts: the steps that all networks share, from the text files to the folder of the finished model.

A network defines its recipe, the packing of its texts into rows, a loss for each stage, and a writer (`Pretraining`).
This module splits the texts, makes the tokenizer, compares the settings of a checkpoint, writes snapshots, resumes, and
writes the finished model. Invariants:

- nothing is written before the settings of an existing checkpoint have been compared with those of the call;
- the tokenizer, each snapshot and the finished model are each written atomically, in this order, so that a run that was
  killed at any moment continues, bit for bit, when it is called again with the same arguments.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Int

from .._base.checks import check_instance, check_integer, check_path, check_say
from .._files.sealed import MODEL, SealedFile
from .corpus import check_paths, digest_of, read_texts, set_aside, some_batches, tokenise, tokenizer_of, write_tokenizer
from .loop import Batches, Training, train


CHECKPOINT = "checkpoint.safetensors"
_ANY = SealedFile("out", None, 0, "choose another folder", what="model")
MOST_SEED = 2**63 - 1


class AbstractRecipe:
    """The length of the training of a network, and the interval between its checkpoints."""

    batch_size: int
    length: int
    steps: int
    epoch_steps: int
    held_out: float

    @property
    def epochs(self) -> int:
        """The number of checkpoints."""
        return -(-self.steps // self.epoch_steps)

    def steps_until(self, epoch: int) -> int:
        """The number of steps before the given checkpoint; the interval before the last checkpoint may be shorter.

        **Arguments:**

        - `epoch`: The number of the checkpoint, from 0.

        **Raises:**

        - `ValueError` if `epoch` is not an integer of at least 0.
        """
        return min(check_integer(epoch, "epoch", least=0) * self.epoch_steps, self.steps)


class Request(NamedTuple):
    """The checked arguments of a call."""

    folder: Path
    paths: list[Path]
    recipe: Any
    seed: int
    snapshots: int
    say: Callable[[str], Any]


class Corpus(NamedTuple):
    """The texts as word pieces: the rows for the training, and the rows that are held out."""

    tokenizer: Any
    rows: Int[np.ndarray, "rows n"]
    held: Int[np.ndarray, "held n"]


class Stage(NamedTuple):
    """A part of the training with one loss, which ends after `epochs` epochs since the start of the training.

    `evaluate` measures a model on the held-out rows, and `line` is logged when the stage begins.
    """

    epochs: int
    loss: Callable[..., Any]
    evaluate: Callable[[Any], dict[str, float]]
    line: str | None = None


class Pretraining(NamedTuple):
    """The parts of the pre-training that depend on the network.

    **Attributes:**

    - `model`: The equinox module before training.
    - `optimiser`: An optax transformation.
    - `stages`: The stages in their order.
    - `batches`: The held-out batches, on which the stages measure.
    - `bases`: Losses of simpler models on the held-out rows, for the report.
    - `kept`: The numbers of the checkpoints at which a snapshot is written.
    - `snapshot`: Writes a model to a path, given without its ending.
    - `finish`: Writes the finished model, with its history and its report, into the folder.
    - `trainable`: A PyTree of booleans like `model`; None trains every floating array.
    """

    model: Any
    optimiser: optax.GradientTransformation
    stages: Sequence[Stage]
    batches: Int[np.ndarray, "k size n"]
    bases: dict[str, float]
    kept: set[int]
    snapshot: Callable[[Path, Any], None]
    finish: Callable[[Any, list[dict[str, float]], dict[str, Any]], None]
    trainable: Any = None


def check_request(out: Any, paths: Any, recipe: Any, kind: type, seed: Any, snapshots: Any, say: Any) -> Request:
    """Check the arguments that every function of pre-training takes."""
    name = kind.__name__
    recipe = kind() if recipe is None else recipe
    article = "an" if name[0] in "AEIOU" else "a"
    check_instance(recipe, "recipe", kind, f"{article} {name} or None", f"pass {name}(), say")
    return Request(
        check_path(out, "out"), check_paths(paths), recipe, check_seed(seed),
        check_integer(snapshots, "snapshots", least=0, remedy="pass 8, say"), check_say(say),
    )  # fmt: skip


def check_seed(seed: Any) -> int:
    return check_integer(seed, "seed", least=0, most=MOST_SEED, remedy="pass 0, say")


def read_corpus(
    asked: Request, vocab_size: int, name: str, in_rows: Callable[[Any, int], Int[np.ndarray, "rows n"]]
) -> Corpus:
    """The texts of a call, as word pieces that `in_rows(pieces, length)` packs into rows.

    `name` is the name of `vocab_size` in the recipe, for messages.
    """
    texts = read_texts(asked.paths)
    # Texts are held out before they are packed, so that no row mixes the two parts.
    aside = set_aside(len(texts), asked.recipe.held_out, asked.seed)
    trained_on, held_out = (
        [text for text, is_held in zip(texts, aside, strict=True) if is_held == flag] for flag in (False, True)
    )
    asked.say(f"{len(trained_on)} texts to train on, {len(held_out)} held out")
    # The tokenizer is trained on the training texts only.
    tokenizer = tokenizer_of(asked.folder, trained_on, vocab_size, name)
    rows, held_rows = (in_rows(tokenise(tokenizer, part), asked.recipe.length) for part in (trained_on, held_out))
    return Corpus(tokenizer, rows, held_rows)


def held_batches(corpus: Corpus, recipe: AbstractRecipe, most: int) -> Int[np.ndarray, "k size n"]:
    """At most `most` batches of the held-out rows."""
    return some_batches(corpus.held, recipe.batch_size, most)


def pretrain(
    asked: Request, corpus: Corpus, network: Pretraining, recipe: AbstractRecipe, settings: dict[str, Any]
) -> dict[str, Any]:
    """Train a network through its stages, write its files, and return its report.

    The `recipe` has as many steps between two checkpoints as the rows allow; `settings` are the recipe as JSON, without
    the description of the data. A ValueError says if the folder holds another run, or cannot be written.
    """
    folder, say, rows = asked.folder, asked.say, corpus.rows
    settings = {"recipe": settings, "seed": asked.seed, "texts": [path.name for path in asked.paths]}
    settings |= {"word pieces": int(rows.size), "sum": int(rows.sum(dtype=np.int64))}
    # The word pieces identify the data; file names and counts make the message of a refusal readable.
    settings |= {"data": digest_of(rows, network.batches)}
    train_stage = functools.partial(
        train, network.model, batches=Batches((jnp.asarray(rows),), recipe.batch_size, recipe.epoch_steps),
        optimiser=network.optimiser, key=jr.fold_in(jr.key(asked.seed), 1), trainable=network.trainable,
        checkpoint=folder / CHECKPOINT, settings=settings, steps=recipe.steps,
    )  # fmt: skip
    # The number of steps in the name is padded, so that names sort by step.
    snapshot = lambda step, model: network.snapshot(folder / "snapshots" / f"step-{step:06d}", model)
    _ANY.refuse_stranger(folder / MODEL)
    if (folder / CHECKPOINT).is_file():
        train_stage(loss=network.stages[0].loss, epochs=0)  # compares the settings before anything is written
        write_tokenizer(folder, corpus.tokenizer, recipe.length)
    else:
        # Without a checkpoint the settings cannot be compared: a model in the folder must have the report of this run.
        _refuse_another(folder, settings)
        write_tokenizer(folder, corpus.tokenizer, recipe.length)
        snapshot(0, network.model)

    def keep(epoch: int, model: Any) -> None:
        if epoch in network.kept:
            snapshot(recipe.steps_until(epoch), model)

    trained: Any = None
    # Each stage resumes from the checkpoint of the stage before, which this call or an earlier one made.
    for stage in network.stages:
        if stage.line is not None:
            say(stage.line)
        trained = train_stage(loss=stage.loss, epochs=stage.epochs, evaluate=stage.evaluate, keep=keep, say=say)
    report = settings | network.bases | _measured(trained, recipe)
    # The last model is written, not the best: pre-training monitors no number.
    network.finish(trained.last, trained.history, report)
    return report


def _measured(done: Training, recipe: AbstractRecipe) -> dict[str, Any]:
    """The part of the report on the training: the size of the model, the length and the last measurements."""
    last, arrays = done.history[-1], jtu.tree_leaves(eqx.filter(done.last, eqx.is_inexact_array))
    return {
        "steps": recipe.steps,
        "word pieces seen": recipe.steps * recipe.batch_size * recipe.length,
        "parameters": int(sum(np.size(leaf) for leaf in arrays)),
        "held-out loss": last["held-out loss"],
        "held-out accuracy": last["held-out accuracy"],
    }


def _refuse_another(folder: Path, settings: dict[str, Any]) -> None:
    """Raise a ValueError if the folder has a model that is not from a finished run with these settings."""
    existing = [name for name in ("config.json", MODEL) if (folder / name).exists()]
    # A missing or damaged report is treated as that of another run.
    try:
        report = _ANY.unpack(folder / MODEL, {"report": dict})[0]["report"] if existing else settings
        same = {name: report.get(name) for name in settings} == settings
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"out must be a new folder or that of this run, but {str(folder)!r} holds {existing[0]} of another network "
            f"and no {CHECKPOINT}; choose another folder."
        )
