"""Pre-training of a small causal language model: recipe, loss, optimiser and output.

`_training.pretraining` has the loop, its checkpoints and its report. Muon (Jordan et al., 2024) trains the matrices
of the layers, and AdamW trains all other parameters and LSTMs, both with a warm-up and a cosine decay. The baselines
are the losses of unigram and bigram models (`_bigrams`).

Invariants: a run that is killed and restarted gives the same model bit for bit; each word of a row except the first is
a target once; inverse temperatures are not trained.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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

from .._base.checks import check_choice, check_flag, check_instance, check_integer, check_key, check_number
from .._base.log import log_line as print_line
from .._files.lock import locked
from .._training.corpus import CLS, tokenizers_library
from .._training.pretraining import (
    AbstractRecipe,
    Pretraining,
    Request,
    Stage,
    check_request,
    check_seed,
    held_batches,
    pretrain,
    read_corpus,
)
from ._checks import check_ids, check_sizes
from ._head import cross_entropy
from ._language_model import LanguageModel, bigram_loss, unigram_loss
from ._lstm import LSTMLanguageModel
from ._norm import NoNorm, PostNorm, PreNorm
from ._positions import RelativePositions, RotaryPositions, SinusoidalPositions
from ._store import save, save_with


_MOST = 2**31 - 1
_RESIDUALS = {"pre": PreNorm(), "post": PostNorm(), "none": NoNorm()}
_POSITIONS = ("learned", "sinusoidal", "relative", "rotary")
# The number of unrolled blocks in a training step: the gradient takes a tenth less time than for a loop over single
# blocks, and the compiled program does not grow with the depth.
_UNROLL = 4
_FARTHEST = 16  # the largest distance with a separate vector, as in Shaw et al. (1803.02155), Section 4.1
_ARCHITECTURES = ("transformer", "lstm")
_STREAMS = {"float32": None, "bfloat16": jnp.bfloat16}


@final
@dataclass(frozen=True)
class LanguageRecipe(AbstractRecipe):
    """The architecture and the training of a language model. A run with the defaults takes minutes on two cores.

    **Arguments:**

    - `architecture`: "transformer", or "lstm" for an `LSTMLanguageModel`, which has no `heads`, `layers`, `shared`,
        `norm` and `positions`, and which AdamW trains alone.
    - `words`: The number of word pieces, including special tokens.
    - `d`, `heads`, `hidden`, `layers`: As in `LanguageModel.random`; `hidden` is also the number of units of an LSTM.
    - `shared`: True if all layers share the weights of one block.
    - `norm`: The position of the layer norms: "pre", "post" or "none".
    - `positions`: "learned" or "sinusoidal" for vectors that are added to the embedding, "relative" for vectors of the
        distances up to 16 that attention adds, "rotary" for rotated queries and keys.
    - `length`: The number of tokens in a row, and so the largest length of text that the model reads at once.
    - `batch_size`: The number of rows in a step.
    - `steps`: The number of all steps.
    - `epoch_steps`: The number of steps between two checkpoints.
    - `learning_rate`: The largest learning rate of Muon, for the matrices of the layers; the rate rises over `warm_up`
        steps and then falls as a cosine.
    - `embedding_rate`: The largest learning rate of AdamW, for embeddings, positions, norms and biases, with the same
        schedule.
    - `warm_up`: The number of steps over which the learning rates rise.
    - `weight_decay`: The weight decay of both optimisers.
    - `held_out`: The fraction of the texts that is excluded from training.
    - `begin`: True if each row begins with the token [CLS]; otherwise rows begin anywhere in a text, with any word
        piece.
    - `stream`: The dtype of the stream: "float32", or "bfloat16" for mixed precision, which is faster on an
        accelerator.

    **Raises:**

    - `ValueError` if a number is out of range or an option is unknown.

    Source: the model of Radford et al., *Language models are unsupervised multitask learners* (2019); the optimiser of
    Jordan et al., *Muon* (2024), as implemented in optax.
    """

    words: int = 2048
    d: int = 128
    heads: int = 4
    hidden: int = 512
    layers: int = 4
    shared: bool = False
    norm: str = "pre"
    positions: str = "learned"
    length: int = 64
    batch_size: int = 16
    steps: int = 4000
    epoch_steps: int = 100
    learning_rate: float = 1e-2
    embedding_rate: float = 5e-3
    warm_up: int = 200
    weight_decay: float = 0.01
    held_out: float = 0.02
    begin: bool = False
    stream: str = "float32"
    architecture: str = "transformer"

    def __post_init__(self):
        for name, least in (("words", 16), ("d", 1), ("heads", 1), ("hidden", 1), ("layers", 1), ("length", 4),
                            ("batch_size", 1), ("steps", 1), ("epoch_steps", 1), ("warm_up", 0)):  # fmt: skip
            self._set(name, check_integer(getattr(self, name), name, least=least, most=_MOST))
        for name in ("learning_rate", "embedding_rate"):
            self._set(name, check_number(getattr(self, name), name, above=0))
        self._set("weight_decay", check_number(self.weight_decay, "weight_decay", least=0))
        self._set("held_out", check_number(self.held_out, "held_out", above=0, below=1))
        for name in ("shared", "begin"):
            self._set(name, check_flag(getattr(self, name), name))
        # Arrays that cannot fit into memory are refused before any array is allocated.
        check_sizes(words=self.words, d=self.d)
        check_sizes(d=self.d, hidden=self.hidden, layers=self.layers)
        for name, choices in (("norm", _RESIDUALS), ("positions", _POSITIONS), ("stream", _STREAMS),
                              ("architecture", _ARCHITECTURES)):  # fmt: skip
            check_choice(getattr(self, name), name, choices)
        if self.architecture == "lstm":
            self._check_lstm()
        if self.d % self.heads:
            raise ValueError(f"heads must divide d, {self.d}, but it is {self.heads}; pass a divisor.")
        if self.positions == "rotary" and self.d // self.heads % 2:
            raise ValueError(
                f"d must be an even number for each head with rotary positions, but it is {self.d} for {self.heads} "
                "heads; change one of them."
            )

    def _check_lstm(self) -> None:
        """Raise a `ValueError` if an option is set that an LSTM does not have."""
        for name, default in (("shared", False), ("norm", "pre"), ("positions", "learned"), ("stream", "float32")):
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} must be left at {default!r} with the architecture lstm, but it is "
                    f"{getattr(self, name)!r}; leave it out."
                )

    def _set(self, name: str, value: Any) -> None:
        """Set a field of the frozen recipe to its checked value."""
        object.__setattr__(self, name, value)

    def model(self, seed: int) -> LanguageModel | LSTMLanguageModel:
        """The model before training, with random weights from `seed`."""
        key = jr.key(check_seed(seed))
        if self.architecture == "lstm":
            return LSTMLanguageModel.random(key, self.words, self.d, self.hidden, dtype=jnp.float32)
        # Parameters are always float32; mixed precision changes `stream_dtype` only.
        initial_model = LanguageModel.random(
            key, self.words, self.d, self.heads, self.hidden, self.layers, **self._places(key),
            residual=_RESIDUALS[self.norm], shared=self.shared, dtype=jnp.float32, stream_dtype=_STREAMS[self.stream],
        )  # fmt: skip
        # `output` and `w_out` add 2 * layers updates to the stream, whose variances add up; the scale keeps the sum
        # independent of the number of layers (GPT-2, Section 2.3).
        writers = lambda m: (m.stack.blocks.attention.output, m.stack.blocks.feed_forward.w_out)
        scale = (2 * self.layers) ** -0.5
        return eqx.tree_at(writers, initial_model, tuple(scale * weights for weights in writers(initial_model)))

    def _places(self, key: PRNGKeyArray) -> dict[str, Any]:
        """The options of `LanguageModel.random` for the positions of the recipe."""
        k = self.d // self.heads
        if self.positions == "sinusoidal":
            return {"positions": SinusoidalPositions(self.d)}
        if self.positions == "relative":
            # A separate key keeps the other weights equal for all kinds of positions.
            drawn = RelativePositions.random(jr.fold_in(key, 1), _FARTHEST, k, dtype=jnp.float32)
            return {"positions": None, "relative": drawn}
        if self.positions == "rotary":
            return {"positions": None, "relative": RotaryPositions(k)}
        return {"positions": self.length}


def language_loss(
    model: LanguageModel | LSTMLanguageModel, rows: Int[Array, "rows n"], key: PRNGKeyArray | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The mean cross entropy of the next words of the rows, in nats, and the fraction of correct predictions.

    **Arguments:**

    - `model`: A causal `LanguageModel`, or an `LSTMLanguageModel`.
    - `rows`: The ids of the words, (rows, n), with n at least 2.
    - `key`: Unused.

    Source: *Transformers, part 2*, slide 28.
    """
    kinds = (LanguageModel, LSTMLanguageModel)
    check_instance(model, "model", kinds, "a LanguageModel or an LSTMLanguageModel", "pass transformer.load()")
    rows = check_ids(rows, model.num_words, "rows", texts=True)
    if rows.shape[1] < 2:
        raise ValueError(f"rows must have a next word, but their shape is {rows.shape}; pass two words at least.")
    if key is not None:
        check_key(key)
    # The last word of a row has no target.
    of_row = model if isinstance(model, LSTMLanguageModel) else functools.partial(model._logits, unroll=_UNROLL)
    logits = jax.vmap(of_row)(rows[:, :-1])
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
    """Train a causal language model, a Transformer or an LSTM, and write it into a folder that `load` reads.

    The file of the model has the tokenizer, the history of every checkpoint, and a report with the held-out loss and
    the losses of a unigram and a bigram model on the same rows. The subfolder `snapshots` has the models at steps that
    double. A killed run continues, bit for bit, if the function is called again with the same arguments. If the folder
    contains a `tokenizer.json`, the run uses this tokenizer; otherwise the run trains a tokenizer.

    **Arguments:**

    - `out`: The folder, which is created if it does not exist.
    - `paths`: Files of texts: `.txt`, `.jsonl`, `.csv`, `.parquet`, optionally with `.gz`.
    - `recipe`: A `LanguageRecipe`; None is `LanguageRecipe()`.

    **Other arguments:**

    - `seed`: The seed of the split of the texts, the random weights and the order of the batches.
    - `snapshots`: The number of models that are kept during training.
    - `say`: A function that receives each line of progress.

    **Returns:**

    The report that was written.

    **Raises:**

    - `ValueError` if the texts cannot be read or are too few, or the folder contains a different run.

    ??? cite "Source"

        *Transformers, part 2*, slides 28 to 30; Radford et al., *Language models are unsupervised multitask learners*
        (2019).
    """
    request = check_request(out, paths, recipe, LanguageRecipe, seed, snapshots, say)
    # A second run in the folder would overwrite the checkpoints of the first, so it is refused.
    with locked(request.folder):
        return _train_in(request)


def _train_in(asked: Request) -> dict[str, Any]:
    """Train in a folder that is locked."""
    # A missing library is reported before minutes of reading.
    tokenizers_library()
    recipe = replace(asked.recipe, epoch_steps=min(asked.recipe.epoch_steps, asked.recipe.steps))
    corpus = read_corpus(asked, recipe.words, "words", begun_windows if recipe.begin else windows)
    rows, rows_needed = corpus.rows, recipe.batch_size * recipe.epoch_steps
    if len(rows) < rows_needed or len(corpus.held) < 1:
        raise ValueError(
            f"paths must hold {rows_needed} rows of {recipe.length} word pieces, enough for the steps between two "
            f"checkpoints, and one held out, but they hold {len(rows)} and {len(corpus.held)}; name more texts, or "
            "make epoch_steps or batch_size smaller."
        )
    held_out = held_batches(corpus, recipe, 32)
    flat = held_out.reshape(-1, held_out.shape[-1])
    bases = {
        f"{name} loss": loss_of(rows, flat, recipe.words)
        for name, loss_of in (("unigram", unigram_loss), ("bigram", bigram_loss))
    }
    asked.say(
        f"{rows.size / 1e6:.2f} million word pieces to train on; guessing by frequency costs "
        f"{bases['unigram loss']:.3f} nats, by the word before {bases['bigram loss']:.3f}"
    )
    initial_model = recipe.model(asked.seed)
    measure = functools.partial(evaluate, batches=jnp.asarray(held_out))
    network = Pretraining(
        initial_model, _optimiser(recipe), [Stage(recipe.epochs, language_loss, measure)], held_out, bases,
        doublings(recipe.epochs, asked.snapshots),
        snapshot=lambda path, model: save(model, path),
        finish=lambda model, history, report: save_with(
            model, asked.folder, {"report": report, "history": history}, corpus.tokenizer.to_str()
        ),
        trainable=_trainable(initial_model),
    )  # fmt: skip
    report = pretrain(asked, corpus, network, recipe, asdict(recipe))
    asked.say(
        f"held-out loss {report['held-out loss']:.3f} nats, by the word before {bases['bigram loss']:.3f}, by "
        f"frequency alone {bases['unigram loss']:.3f}; in {asked.folder}"
    )
    return report


def windows(pieces: Int[np.ndarray, " pieces"], length: int) -> Int[np.ndarray, "rows window"]:
    """Cut a text into rows of `length` words and the next word, which is also the first word of the next row, so that
    each word except the first is a target once. An incomplete last row is dropped.
    """
    rows = max(0, (len(pieces) - 1) // length)
    return pieces[np.arange(rows)[:, None] * length + np.arange(length + 1)[None, :]]


def begun_windows(pieces: Int[np.ndarray, " pieces"], length: int) -> Int[np.ndarray, "rows window"]:
    """Cut a text into rows of the token [CLS] and `length` words, so that each word is a target once, and the first
    word of a row is predicted from [CLS] alone. An incomplete last row is dropped.
    """
    # The last word of a row is only a target, as in `windows`, so that the model reads `length` tokens including [CLS].
    rows = len(pieces) // length
    complete = pieces[: rows * length].reshape(rows, length)
    return np.concatenate([np.full((rows, 1), CLS, complete.dtype), complete], axis=1)


def evaluate(model: LanguageModel | LSTMLanguageModel, batches: Int[Array, "k size n"]) -> dict[str, float]:
    """The mean loss and accuracy over held-out batches."""
    measured = [_measured(model, rows) for rows in batches]
    return {
        "held-out loss": float(np.mean([float(loss) for loss, _ in measured])),
        "held-out accuracy": float(np.mean([float(more["accuracy"]) for _, more in measured])),
    }


@eqx.filter_jit
def _measured(model: LanguageModel | LSTMLanguageModel, rows: Array) -> tuple[Array, dict[str, Array]]:
    return language_loss(model, rows)


def doublings(epochs: int, count: int) -> set[int]:
    """At most `count` checkpoints, each at half of the next; the last is `epochs`."""
    return {max(1, round(epochs / 2**k)) for k in range(count)}


@functools.lru_cache(maxsize=8)  # a second run gets the same object and so recompiles nothing
def _optimiser(recipe: LanguageRecipe) -> optax.GradientTransformation:
    rate, embedding_rate = (
        optax.warmup_cosine_decay_schedule(0.0, top, min(recipe.warm_up, recipe.steps // 2), recipe.steps)
        for top in (recipe.learning_rate, recipe.embedding_rate)
    )
    if recipe.architecture == "lstm":
        adam = optax.adamw(embedding_rate, b2=0.98, weight_decay=recipe.weight_decay)
        return optax.chain(optax.clip_by_global_norm(1.0), adam)
    muon = optax.contrib.muon(
        rate, weight_decay=recipe.weight_decay, adam_learning_rate=embedding_rate, adam_b2=0.98,
        muon_weight_dimension_numbers=_matrices,
    )  # fmt: skip
    # Clipping to global norm 1 scales down single batches with large gradients.
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _matrices(params: Any) -> Any:
    """The input and output axes of each matrix of the layers, for Muon; None for embeddings and vectors."""
    axes_of = lambda reads, writes: optax.contrib.MuonDimensionNumbers(reads, writes)
    # An array (layers, h, d, k) has the input axis d and the output axes h and k, so that all heads of a layer are
    # orthogonalised as one (d, h k) matrix.
    attention = lambda m: (*(getattr(m.stack.blocks.attention, name) for name in ("query", "key", "value", "output")),)
    forward = lambda m: (m.stack.blocks.feed_forward.w_in, m.stack.blocks.feed_forward.w_out)
    axes = (*3 * (axes_of((-2,), (-3, -1)),), axes_of((-3, -2), (-1,)), *2 * (axes_of((-2,), (-1,)),))
    # None marks the parameters that AdamW trains.
    none = jtu.tree_map(lambda leaf: None, params)
    return eqx.tree_at(lambda m: (*attention(m), *forward(m)), none, axes, is_leaf=lambda leaf: leaf is None)


def _trainable(model: LanguageModel | LSTMLanguageModel) -> Any:
    """The flags of the trained parameters: all arrays except the inverse temperatures."""
    if isinstance(model, LSTMLanguageModel):
        return None
    # beta multiplies <W_Q x, W_K y>, so it is redundant beside the trained W_Q and W_K.
    every = jtu.tree_map(eqx.is_inexact_array, model)
    return eqx.tree_at(lambda m: m.stack.blocks.attention.beta, every, False)
