"""Pre-training on texts: what all networks share, from the files of texts to the folder of the finished model.

A network brings its recipe, how its texts are packed into rows, a loss for each stage, and what writes it
(`Pretraining`). The rest is here: the split of the texts, the tokenizer, the settings that a checkpoint must have,
snapshots along the way, resuming, and the final folder. Invariants:

- nothing is written before the settings of a checkpoint that is there were compared with those of this call;
- the tokenizer, each snapshot and the finished model are each written in one transaction, in this order, so that a
  run which was killed at any moment goes on, bit for bit, when it is called again in the same way.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Int

from ._check import check_instance, check_integer, check_path, check_say
from ._corpus import (
    check_paths,
    digest_of,
    read_texts,
    set_aside,
    some_batches,
    tokenise,
    tokenizer_of,
    write_tokenizer,
)
from ._further import Legs, legs_of, same
from ._json import read_json
from ._model_folder import ARRAYS, CONFIG, HISTORY, REPORT, refuse_strangers
from ._training_loop import Batches, Training, stored_run, train


CHECKPOINT = "checkpoint.safetensors"
MOST_SEED = 2**63 - 1


class AbstractRecipe:
    """How long a network is trained, and how often a checkpoint is written."""

    batch_size: int
    length: int
    steps: int
    epoch_steps: int
    held_out: float

    @property
    def epochs(self) -> int:
        """Checkpoints in all."""
        return -(-self.steps // self.epoch_steps)

    def steps_until(self, epoch: int) -> int:
        """Steps before the checkpoint of this number; before the last there may be fewer than between two others.

        **Arguments:**

        - `epoch`: The number, from 0.

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
    """The texts as word pieces: the rows to train on, and those that are held out."""

    tokenizer: Any
    rows: Int[np.ndarray, "rows n"]
    held: Int[np.ndarray, "held n"]


class Stage(NamedTuple):
    """A part of the training with one loss; `epochs` are those since the start, at its end.

    `evaluate` measures a model on the rows that were held out, and `line` is logged as the stage begins.
    """

    epochs: int
    loss: Callable[..., Any]
    evaluate: Callable[[Any], dict[str, float]]
    line: str | None = None


class Pretraining(NamedTuple):
    """What one network brings.

    **Attributes:**

    - `model`: Before training; an equinox module.
    - `optimiser`: Of optax.
    - `stages`: One after the other.
    - `batches`: Those that were held out, as the stages measure them.
    - `bases`: Losses of simpler models on the same rows, for the report.
    - `kept`: The numbers of the checkpoints at which a snapshot is kept.
    - `snapshot`: Writes a model under a path without its ending.
    - `finish`: Writes the finished model, with the files of history and report, into the folder.
    - `trainable`: A PyTree of booleans like `model`; None trains every floating array.
    """

    model: Any
    optimiser: optax.GradientTransformation
    stages: Sequence[Stage]
    batches: Int[np.ndarray, "k size n"]
    bases: dict[str, float]
    kept: set[int]
    snapshot: Callable[[Path, Any], None]
    finish: Callable[[Any, dict[str, bytes], dict[str, Any]], None]
    trainable: Any = None


def check_request(out: Any, paths: Any, recipe: Any, kind: type, seed: Any, snapshots: Any, say: Any) -> Request:
    """The arguments that every function of pre-training takes.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    name = kind.__name__
    recipe = kind() if recipe is None else recipe
    article = "an" if name[0] in "AEIOU" else "a"
    check_instance(recipe, "recipe", kind, f"{article} {name} or None", f"pass {name}(), say")
    return Request(
        check_path(out, "out"), check_paths(paths), recipe, check_seed(seed),
        check_integer(snapshots, "snapshots", least=0, remedy="pass 8, say"), check_say(say),
    )  # fmt: skip


def check_seed(seed: Any) -> int:
    """`seed`, if it is one.

    **Raises:**

    - `ValueError` naming its value and what to do.
    """
    return check_integer(seed, "seed", least=0, most=MOST_SEED, remedy="pass 0, say")


def read_corpus(
    asked: Request, vocab_size: int, name: str, in_rows: Callable[[Any, int], Int[np.ndarray, "rows n"]]
) -> Corpus:
    """The texts of a call, tokenised and packed into rows.

    **Arguments:**

    - `asked`: The call.
    - `vocab_size`, `name`: How many word pieces there are, and what the recipe calls that, for messages.
    - `in_rows`: `in_rows(pieces, length)`.

    **Raises:**

    - `ValueError` if the texts cannot be read, or the tokenizer of the folder is another one.
    """
    texts = read_texts(asked.paths)
    # Held out by text, before anything is packed: no row mixes the two parts.
    aside = set_aside(len(texts), asked.recipe.held_out, asked.seed)
    seen, unseen = ([text for text, a in zip(texts, aside, strict=True) if a == flag] for flag in (False, True))
    asked.say(f"{len(seen)} texts to train on, {len(unseen)} held out")
    # Trained on the texts to train on alone.
    tokenizer = tokenizer_of(asked.folder, seen, vocab_size, name)
    rows, held = (in_rows(tokenise(tokenizer, part), asked.recipe.length) for part in (seen, unseen))
    return Corpus(tokenizer, rows, held)


def held_batches(corpus: Corpus, recipe: AbstractRecipe, most: int) -> Int[np.ndarray, "k size n"]:
    """At most so many batches of the rows that were held out."""
    return some_batches(corpus.held, recipe.batch_size, most)


def legs_in(asked: Request, ready: Callable[[Any], Any], record: Callable[[Any], dict[str, Any]]) -> tuple[Any, Legs]:
    """The recipe of a call as it is run, and the legs of its run; of more than one if a finished run is trained
    further.

    **Arguments:**

    - `asked`: The call.
    - `ready`: Makes `epoch_steps` of a recipe what the texts and the steps allow.
    - `record`: A recipe as JSON.

    **Raises:**

    - `ValueError` if the run in the folder has more steps, or is not finished and has fewer.
    """
    recipe, stored = ready(asked.recipe), stored_run(asked.folder / CHECKPOINT)
    length_of = lambda settings: settings["recipe"].get("steps") if isinstance(settings.get("recipe"), dict) else None
    if stored is None:
        return recipe, Legs((), recipe.steps, recipe.epoch_steps)
    # What is between two checkpoints was settled by the first leg, and stays.
    first = (stored[0].get("legs") or [length_of(stored[0])])[0]
    if isinstance(first, int) and first > 0:
        begun = ready(replace(asked.recipe, steps=first))
        is_of = lambda settings, length: same(settings["recipe"], record(replace(begun, steps=length)))
        if is_of(stored[0], length_of(stored[0])):
            recipe = replace(begun, steps=recipe.steps)
    else:
        is_of = lambda settings, length: False
    return recipe, legs_of(stored, recipe.steps, recipe.epoch_steps, is_of, length_of, "steps")


def pretrain(
    asked: Request,
    corpus: Corpus,
    network: Pretraining,
    recipe: AbstractRecipe,
    settings: dict[str, Any],
    legs: Legs,
) -> dict[str, Any]:
    """Train a network through its stages, write its files, and return its report.

    **Arguments:**

    - `asked`, `corpus`, `network`: As above.
    - `recipe`: That of the call, with as many steps between two checkpoints as the rows allow.
    - `settings`: The recipe as JSON; what says which data were used is put beside it.
    - `legs`: As `legs_in` gives them.

    **Raises:**

    - `ValueError` if the folder holds another run, or cannot be written.
    """
    folder, say, rows = asked.folder, asked.say, corpus.rows
    settings = {"recipe": settings, "seed": asked.seed, "texts": [path.name for path in asked.paths]}
    settings |= {"word pieces": int(rows.size), "sum": int(rows.sum(dtype=np.int64))}
    # The word pieces themselves identify the data; file names and counts make a refusal readable.
    settings |= {"data": digest_of(rows, network.batches)} | legs.settings()
    if legs.ends:
        say(f"trained further, from step {legs.start} to {legs.total}: the learning rate rises and falls again")
    train_stage = functools.partial(
        train, network.model, batches=Batches((jnp.asarray(rows),), recipe.batch_size, recipe.epoch_steps),
        optimiser=network.optimiser, key=jr.fold_in(jr.key(asked.seed), 1), trainable=network.trainable,
        checkpoint=folder / CHECKPOINT, settings=settings, steps=recipe.steps, begun=(legs.start_epoch, legs.start),
        former=_former(settings, legs),
    )  # fmt: skip
    # The steps in the name, padded so that names sort by step.
    snapshot = lambda step, model: network.snapshot(folder / "snapshots" / f"step-{step:06d}", model)
    refuse_strangers(folder, (HISTORY, REPORT), "out")
    if (folder / CHECKPOINT).is_file():
        train_stage(loss=network.stages[0].loss, epochs=0)  # compares the settings before anything is written
        write_tokenizer(folder, corpus.tokenizer, recipe.length)
    else:
        # Without a checkpoint the settings cannot be compared: a model in the folder must have this run's report.
        _refuse_another(folder, settings)
        write_tokenizer(folder, corpus.tokenizer, recipe.length)
        snapshot(0, network.model)

    def keep(epoch: int, model: Any) -> None:
        if epoch in network.kept:
            snapshot(legs.steps_until(epoch), model)

    done: Any = None
    # Each stage resumes from the checkpoint of the one before, in this call or in an earlier one.
    for stage in network.stages:
        if stage.line is not None:
            say(stage.line)
        done = train_stage(loss=stage.loss, epochs=stage.epochs, evaluate=stage.evaluate, keep=keep, say=say)
    report = settings | network.bases | _measured(done, recipe)
    files = {HISTORY: done.history, REPORT: report}
    # The last model, not the best: pre-training monitors nothing.
    network.finish(done.last, {name: json.dumps(file, indent=1).encode() for name, file in files.items()}, report)
    return report


def _former(settings: dict[str, Any], legs: Legs) -> dict[str, Any] | None:
    """The settings of the finished run that is trained further."""
    if not legs.ends:
        return None
    without = {name: value for name, value in settings.items() if name != "legs"}
    before = legs._replace(ends=legs.ends[:-1])
    return without | {"recipe": settings["recipe"] | {"steps": legs.start}} | before.settings()


def _measured(done: Training, recipe: AbstractRecipe) -> dict[str, Any]:
    """What the report says of the training: its size, its length and the last measurements."""
    last, arrays = done.history[-1], jtu.tree_leaves(eqx.filter(done.last, eqx.is_inexact_array))
    return {
        "steps": recipe.steps,
        "word pieces seen": recipe.steps * recipe.batch_size * recipe.length,
        "parameters": int(sum(np.size(leaf) for leaf in arrays)),
        "held-out loss": last["held-out loss"],
        "held-out accuracy": last["held-out accuracy"],
    }


def _refuse_another(folder: Path, settings: dict[str, Any]) -> None:
    """Raise a ValueError if there is a model in the folder, but not that of a finished run with these settings."""
    existing = [name for name in (CONFIG, ARRAYS) if (folder / name).exists()]
    # A report that is missing or damaged is that of another run, as far as one can tell.
    try:
        report = read_json(folder / REPORT, dict, argument="out", remedy="choose another") if existing else settings
        same = {name: report.get(name) for name in settings} == settings
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"out must be a new folder or that of this run, but {str(folder)!r} holds {existing[0]} of another network "
            f"and no {CHECKPOINT}; choose another folder."
        )
