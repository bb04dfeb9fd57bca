"""A small causal language model of one's own: recipe, training, and what is written."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace as changed
from pathlib import Path
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_key,
    check_number,
    check_path,
    check_say,
    check_sequence,
)
from .._corpus import (
    cut,
    digest_of,
    read_texts,
    set_aside,
    some_batches,
    tokenizer_of,
    tokenizers_library,
    write_tokenizer,
)
from .._disk import write_folder
from .._lock import locked
from .._say import say as print_line
from .._training import Batches, train
from ._bigrams import bigram_loss, unigram_loss
from ._checks import check_ids, check_sizes
from ._head import cross_entropy
from ._language_model import LanguageModel, check_model
from ._norm import NoNorm, PostNorm, PreNorm
from ._store import save


CHECKPOINT = "checkpoint.safetensors"
_HISTORY, _REPORT = "history.json", "report.json"
_MOST = 2**31 - 1
_RESIDUALS = {"pre": PreNorm(), "post": PostNorm(), "none": NoNorm()}
_STREAMS = {"float32": None, "bfloat16": jnp.bfloat16}


@final
@dataclass(frozen=True)
class LanguageRecipe:
    """How a language model is built and trained. The defaults take minutes on two cores.

    **Arguments:**

    - `words`: Word pieces, special ones included.
    - `d`, `heads`, `hidden`, `layers`: As in `LanguageModel.random`.
    - `shared`: Whether all layers have the weights of one.
    - `norm`: "pre", "post" or "none": where the layer norms stand.
    - `length`: Tokens in a row of training, and so the longest text that the model reads at once.
    - `batch_size`: Rows in a step.
    - `steps`: In all.
    - `epoch_steps`: Between two checkpoints.
    - `learning_rate`: The largest, of Muon for the matrices of the layers; it rises over `warm_up` steps and falls
        like a cosine.
    - `embedding_rate`: The largest of AdamW, for embeddings, positions, norms and biases; it goes the same way.
    - `warm_up`, `weight_decay`: As said.
    - `held_out`: The share of the texts that is never trained on.
    - `stream`: "float32", or "bfloat16" for mixed precision, which pays on an accelerator.

    **Raises:**

    - `ValueError` if a number is out of its range or a word is unknown.

    Source: this library; the model is that of Radford et al., *Language models are unsupervised multitask learners*
        (2019), the optimiser that of Jordan et al., *Muon* (2024), as optax has it.
    """

    words: int = 2048
    d: int = 128
    heads: int = 4
    hidden: int = 512
    layers: int = 4
    shared: bool = False
    norm: str = "pre"
    length: int = 64
    batch_size: int = 16
    steps: int = 4000
    epoch_steps: int = 100
    learning_rate: float = 1e-2
    embedding_rate: float = 5e-3
    warm_up: int = 200
    weight_decay: float = 0.01
    held_out: float = 0.02
    stream: str = "float32"

    def __post_init__(self):
        for name, least in (("words", 16), ("d", 1), ("heads", 1), ("hidden", 1), ("layers", 1), ("length", 4),
                            ("batch_size", 1), ("steps", 1), ("epoch_steps", 1), ("warm_up", 0)):  # fmt: skip
            self._set(name, check_integer(getattr(self, name), name, least=least, most=_MOST))
        for name in ("learning_rate", "embedding_rate"):
            self._set(name, check_number(getattr(self, name), name, above=0))
        self._set("weight_decay", check_number(self.weight_decay, "weight_decay", least=0))
        self._set("held_out", check_number(self.held_out, "held_out", above=0, below=1))
        self._set("shared", check_flag(self.shared, "shared"))
        check_sizes(words=self.words, d=self.d)
        check_sizes(d=self.d, hidden=self.hidden, layers=self.layers)
        if self.d % self.heads:
            raise ValueError(f"heads must divide d, {self.d}, but it is {self.heads}; pass a divisor.")
        for name, choices in (("norm", _RESIDUALS), ("stream", _STREAMS)):
            check_choice(getattr(self, name), name, choices)

    def _set(self, name: str, value: Any) -> None:
        """Keep a number of NumPy as one of Python, which JSON can hold."""
        object.__setattr__(self, name, value)

    @property
    def epochs(self) -> int:
        """Checkpoints in all."""
        return -(-self.steps // self.epoch_steps)

    def steps_until(self, epoch: int) -> int:
        """Steps before the checkpoint of this number; before the last there may be fewer than between two others.

        Source: this library.
        """
        return min(check_integer(epoch, "epoch", least=0) * self.epoch_steps, self.steps)

    def model(self, seed: int) -> LanguageModel:
        """The model before training."""
        made = LanguageModel.random(
            jr.key(_check_seed(seed)), self.words, self.d, self.heads, self.hidden, self.layers, positions=self.length,
            residual=_RESIDUALS[self.norm], shared=self.shared, dtype=jnp.float32, stream_dtype=_STREAMS[self.stream],
        )  # fmt: skip
        # What writes to the stream writes the less the more layers there are.
        writers = lambda m: (m.stack.blocks.attention.output, m.stack.blocks.feed_forward.w_out)
        scale = (2 * self.layers) ** -0.5
        return eqx.tree_at(writers, made, tuple(scale * weights for weights in writers(made)))


def language_loss(
    model: LanguageModel, rows: Int[Array, "rows n"], key: PRNGKeyArray | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The mean cross entropy of each next word of the rows, in nats, and the share that is guessed right.

    **Arguments:**

    - `model`: A causal `LanguageModel`.
    - `rows`: Ids, (rows, n).
    - `key`: Not used.

    Source: *Transformers, part 2*, slide 28.
    """
    rows = check_ids(rows, check_model(model).num_words, "rows", texts=True)
    if rows.shape[1] < 2:
        raise ValueError(f"rows must have a next word, but their shape is {rows.shape}; pass two words at least.")
    if key is not None:
        check_key(key)
    logits = jax.vmap(model)(rows[:, :-1])
    targets = rows[:, 1:]
    right = jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets
    return cross_entropy(logits, targets), {"accuracy": jnp.mean(right.astype(logits.dtype))}


def train_language_model(
    out: str | Path,
    paths: Sequence[str | Path],
    recipe: LanguageRecipe | None = None,
    *,
    seed: int = 0,
    snapshots: int = 8,
    say: Callable[[str], None] = print_line,
) -> dict[str, Any]:
    """Train a causal language model, and write a folder that `load` reads.

    The folder holds the model, its tokenizer, the history of every checkpoint, a report with the held-out loss beside
    those of guessing by frequency and by the word before on the same rows, and under `snapshots` the model along the
    way, at steps that double. A run that was killed goes on, bit for bit, when it is called again in the same way. A
    `tokenizer.json` that is in the folder is used; without one it is trained, which is not the same twice.

    **Arguments:**

    - `out`: The folder, made if it is not there.
    - `paths`: Files of texts: `.txt`, `.jsonl`, `.csv`, `.parquet`, perhaps with `.gz`.
    - `recipe`: A `LanguageRecipe`; None is `LanguageRecipe()`.

    **Other arguments:**

    - `seed`: Of the split of the texts, the random weights and the orders.
    - `snapshots`: How many models along the way are kept.
    - `say`: Is given each line of progress.

    **Returns:**

    The report, as it was written.

    **Raises:**

    - `ValueError` if the texts cannot be read or are too few, or the folder holds another run.

    ??? cite "Source"

        *Transformers, part 2*, slides 28 to 30; Radford et al., *Language models are unsupervised multitask learners*
        (2019).
    """
    recipe, folder = LanguageRecipe() if recipe is None else recipe, check_path(out, "out")
    check_instance(recipe, "recipe", LanguageRecipe, "a LanguageRecipe or None", "pass LanguageRecipe()")
    paths = check_sequence(paths, "paths", (str, os.PathLike), "paths")
    for path in paths:
        check_path(path, "paths")
    seed, snapshots = _check_seed(seed), check_integer(snapshots, "snapshots", least=0)
    check_say(say)
    with locked(folder):
        return _train_in(folder, paths, recipe, seed, snapshots, say)


def _check_seed(seed: Any) -> int:
    return check_integer(seed, "seed", least=0, most=2**63 - 1, remedy="pass 0, say")


def _train_in(
    folder: Path,
    paths: Sequence[str | Path],
    recipe: LanguageRecipe,
    seed: int,
    snapshots: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`train_language_model` in a folder that no other run writes to."""
    tokenizers_library()  # before anything is read
    recipe = changed(recipe, epoch_steps=min(recipe.epoch_steps, recipe.steps))
    texts = read_texts(paths)
    aside = set_aside(len(texts), recipe.held_out, seed)
    seen, unseen = ([text for text, a in zip(texts, aside, strict=True) if a == flag] for flag in (False, True))
    say(f"{len(seen)} texts to train on, {len(unseen)} held out")
    tokenizer = tokenizer_of(folder, seen, recipe.words, "words")
    rows, held = (windows(cut(tokenizer, part), recipe.length) for part in (seen, unseen))
    if len(rows) < recipe.batch_size * recipe.epoch_steps or len(held) < 1:
        raise ValueError(
            f"paths must hold {recipe.batch_size * recipe.epoch_steps} rows of {recipe.length} word pieces, enough for "
            f"the steps between two checkpoints, and one held out, but they hold {len(rows)} and {len(held)}; name "
            "more texts, or make epoch_steps or batch_size smaller."
        )
    held = some_batches(held, recipe.batch_size, 32)
    flat = held.reshape(-1, held.shape[-1])
    bases = {
        f"{name} loss": of(rows, flat, recipe.words)
        for name, of in (("unigram", unigram_loss), ("bigram", bigram_loss))
    }
    say(
        f"{rows.size / 1e6:.2f} million word pieces to train on; guessing by frequency costs "
        f"{bases['unigram loss']:.3f} nats, by the word before {bases['bigram loss']:.3f}"
    )
    settings = {"recipe": asdict(recipe), "seed": seed, "texts": [Path(p).name for p in paths]}
    settings |= {"word pieces": int(rows.size), "sum": int(rows.sum(dtype=np.int64)), "data": digest_of(rows, held)}
    made = recipe.model(seed)
    going = functools.partial(
        train, made, language_loss, Batches((jnp.asarray(rows),), recipe.batch_size, recipe.epoch_steps),
        optimiser=_optimiser(recipe), key=jr.fold_in(jr.key(seed), 1), trainable=_trainable(made),
        checkpoint=folder / CHECKPOINT, settings=settings, steps=recipe.steps,
    )  # fmt: skip
    if (folder / CHECKPOINT).is_file():
        going(epochs=0)  # compares the settings before anything is written
    else:
        save(made, folder / "snapshots" / "step-000000")
    write_tokenizer(folder, tokenizer, recipe.length)
    wanted = doublings(recipe.epochs, snapshots)

    def keep(epoch: int, model: LanguageModel) -> None:
        if epoch in wanted:
            save(model, folder / "snapshots" / f"step-{recipe.steps_until(epoch):06d}")

    done = going(
        epochs=recipe.epochs, evaluate=functools.partial(evaluate, batches=jnp.asarray(held)), keep=keep, say=say
    )
    report = settings | bases | {
        "steps": recipe.steps,
        "word pieces seen": recipe.steps * recipe.batch_size * recipe.length,
        "parameters": int(sum(np.size(leaf) for leaf in jtu.tree_leaves(eqx.filter(done.last, eqx.is_inexact_array)))),
        "held-out loss": done.history[-1]["held-out loss"],
        "held-out accuracy": done.history[-1]["held-out accuracy"],
        "seconds": round(sum(row["seconds"] for row in done.history), 1),
    }  # fmt: skip
    save(done.last, folder, report=report)
    contents = {_HISTORY: done.history, _REPORT: report}
    write_folder(folder, {name: json.dumps(content, indent=1).encode() for name, content in contents.items()})
    say(
        f"held-out loss {report['held-out loss']:.3f} nats, by the word before {bases['bigram loss']:.3f}, by "
        f"frequency alone {bases['unigram loss']:.3f}; in {folder}"
    )
    return report


def windows(pieces: Int[np.ndarray, " pieces"], length: int) -> Int[np.ndarray, "rows window"]:
    """A text in rows of `length` words and the one that follows, which is the first of the next row: each word but the
    first is to be guessed once. What does not fill the last row is left out.

    Source: this library.
    """
    rows = max(0, (len(pieces) - 1) // length)
    return pieces[np.arange(rows)[:, None] * length + np.arange(length + 1)[None, :]]


def evaluate(model: LanguageModel, batches: Int[Array, "k size n"]) -> dict[str, float]:
    """Loss and accuracy over batches that were held out.

    Source: this library.
    """
    found = [_measured(model, rows) for rows in batches]
    return {
        "held-out loss": float(np.mean([float(loss) for loss, _ in found])),
        "held-out accuracy": float(np.mean([float(more["accuracy"]) for _, more in found])),
    }


@eqx.filter_jit
def _measured(model: LanguageModel, rows: Array) -> tuple[Array, dict[str, Array]]:
    return language_loss(model, rows)


def doublings(epochs: int, count: int) -> set[int]:
    """At most so many checkpoints, each at twice the step of the one before, the last at the end.

    Source: this library.
    """
    return {max(1, round(epochs / 2**k)) for k in range(count)}


@functools.lru_cache(maxsize=8)  # the same object, so that a second run compiles nothing anew
def _optimiser(recipe: LanguageRecipe) -> optax.GradientTransformation:
    total = recipe.steps
    rate, other = (
        optax.warmup_cosine_decay_schedule(0.0, top, min(recipe.warm_up, total // 2), total)
        for top in (recipe.learning_rate, recipe.embedding_rate)
    )
    muon = optax.contrib.muon(
        rate, weight_decay=recipe.weight_decay, adam_learning_rate=other, adam_b2=0.98,
        muon_weight_dimension_numbers=_matrices,
    )  # fmt: skip
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _matrices(params: Any) -> Any:
    """For the matrices of the layers which axes they are of; None for embeddings and vectors. Heads are one matrix."""
    of = lambda reads, writes: optax.contrib.MuonDimensionNumbers(reads, writes)
    attention = lambda m: (*(getattr(m.stack.blocks.attention, name) for name in ("query", "key", "value", "output")),)
    forward = lambda m: (m.stack.blocks.feed_forward.w_in, m.stack.blocks.feed_forward.w_out)
    axes = (*3 * (of((-2,), (-3, -1)),), of((-3, -2), (-1,)), *2 * (of((-2,), (-1,)),))
    none = jtu.tree_map(lambda leaf: None, params)
    return eqx.tree_at(lambda m: (*attention(m), *forward(m)), none, axes, is_leaf=lambda leaf: leaf is None)


def _trainable(model: LanguageModel) -> Any:
    """All arrays but the inverse temperatures, which the weights of queries and keys already have."""
    every = jtu.tree_map(eqx.is_inexact_array, model)
    return eqx.tree_at(lambda m: m.stack.blocks.attention.beta, every, False)
