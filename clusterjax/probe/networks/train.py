"""Pre-training of an ALBERT: word pieces, masked language modelling, and snapshots during training.

The training loop, its checkpoints and its report are in `_training.pretraining`; this file has the recipe, the
initial weights, the optimiser and the stages. The optimiser is AdamW with a warm-up and a cosine decay (Loshchilov and
Hutter, 1711.05101). The first stage trains a shallow network on short pieces (Gong et al., 2019; BERT, 1810.04805,
Appendix A.2).

Invariants: an interrupted run that is restarted gives the same weights, bit for bit; the stages are given as fractions
of the steps, so that they scale with them; transformers can also read the folder that is written.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._base.checks import check_integer, check_number, check_sequence, refusal, shown
from ..._base.log import log_line as print_line
from ..._files.lock import locked
from ..._files.sealed import MODEL, SealedFile, checksum, put_file
from ..._training.corpus import CLS, MASK, PAD, SEP, SPECIAL, pack, tokenizer_files
from ..._training.pretraining import (
    AbstractRecipe,
    Pretraining,
    Request,
    Stage,
    check_request,
    held_batches,
    pretrain,
    read_corpus,
)
from .families import sizes_of
from .network import Network
from .sizes import NetworkSizes
from .view import NetworkView
from .weights import tensors


# Masked language modelling: hiding of tokens, the loss of predicting them, and the loss without context.
#
# A fixed fraction of each row is hidden; 80 % of these tokens become [MASK], 10 % a random word piece, and 10 % stay
# (Devlin et al., *BERT*, 1810.04805, Section 3.1). The loss is the mean cross entropy over the hidden positions.
#
# Invariants: each row has the same number m of hidden positions, so that shapes are static and logits are computed at m
# positions rather than at all n; special tokens are never hidden; the same key hides the same tokens.


# The network as an equinox module, whose arrays are leaves, as the training loop requires.
Held = NetworkView


def hide(
    token_ids: Int[Array, "rows n"], vocab_size: int, share: float, key: PRNGKeyArray
) -> tuple[Int[Array, "rows n"], Int[Array, "rows m"], Int[Array, "rows m"]]:
    """Hide `m = ceil(share n)` tokens of each row: returns the network input, the hidden positions, and their tokens.

    Special tokens are not hidden. Of the hidden tokens 80 % become `[MASK]`, 10 % a random word piece, and 10 % stay.

    ??? cite "Source"

        Devlin et al., *BERT: pre-training of deep bidirectional transformers* (1810.04805), Section 3.1.
    """
    rows, n = token_ids.shape
    m = math.ceil(share * n)
    where_key, how_key, word_key = jr.split(key, 3)
    # The m largest of n uniform numbers are a uniform choice without replacement; special tokens rank below all words.
    priority = jnp.where(token_ids < len(SPECIAL), -1.0, jr.uniform(where_key, (rows, n), jnp.float32))
    _, places = jax.lax.top_k(priority, m)
    words = jnp.take_along_axis(token_ids, places, axis=1)
    how = jr.uniform(how_key, (rows, m), jnp.float32)
    other = jr.randint(word_key, (rows, m), len(SPECIAL), vocab_size, words.dtype)
    shown = jnp.where(how < 0.8, jnp.asarray(MASK, words.dtype), jnp.where(how < 0.9, other, words))
    # In a row with fewer words than m special tokens are chosen too; they stay as they are and do not count.
    shown = jnp.where(words < len(SPECIAL), words, shown)
    inputs = token_ids.at[jnp.arange(rows)[:, None], places].set(shown)
    return inputs, places, words


class MaskedLoss(eqx.Module):
    """The mean cross entropy of the hidden word pieces, in nats.

    **Arguments:**

    - `vocab_size`: The size of the vocabulary of the network.
    - `share`: The fraction of the tokens that is hidden.
    - `depth`: The number of applications of the layers; None selects that of the network.
    - `length`: Rows are cut into pieces of `length` tokens, which are read separately with the positions of the row;
        None reads whole rows.

    Source: Devlin et al., *BERT: pre-training of deep bidirectional transformers* (1810.04805), Section 3.1.
    """

    vocab_size: int = eqx.field(static=True)
    share: float = eqx.field(static=True, default=0.15)
    depth: int | None = eqx.field(static=True, default=None)
    length: int | None = eqx.field(static=True, default=None)

    def __call__(
        self, model: Held, token_ids: Int[Array, "rows n"], key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss of a batch, and the fraction of hidden word pieces that are predicted correctly."""
        rows, n = token_ids.shape
        length = n if self.length is None else self.length
        # Positions count along the whole row, so that the whole position embedding is trained despite the pieces.
        positions = jnp.tile(jnp.arange(n).reshape(-1, length), (rows, 1))
        inputs, places, words = hide(token_ids.reshape(-1, length), self.vocab_size, self.share, key)
        network = model.network
        if self.depth is not None:
            # `nnx.merge` has made a new network, so the trained one keeps its depth. All layers are unrolled: this
            # slows compilation but speeds up each of thousands of derivatives.
            network.depth = network.unroll = self.depth
        # Only the hidden positions reach the head, which computes a logit for each word of the vocabulary.
        hidden = jnp.take_along_axis(network(inputs, position_ids=positions), places[:, :, None], axis=1)
        scores = network.logits(hidden)
        counted = (words >= len(SPECIAL)).astype(scores.dtype)
        # The maximum with 1 makes the loss of a batch of special tokens 0 rather than 0 / 0.
        total = jnp.maximum(jnp.sum(counted), 1)
        of_word = jnp.take_along_axis(scores, words[:, :, None], axis=2)[:, :, 0]
        cost = (jax.nn.logsumexp(scores, axis=2) - of_word) * counted
        right = jnp.where(jnp.argmax(scores, axis=2).astype(words.dtype) == words, counted, 0)
        return jnp.sum(cost) / total, {"accuracy": jnp.sum(right) / total}


class Evaluate:
    """Loss and accuracy on held-out batches, with the same tokens hidden each time."""

    def __init__(self, batches: Int[np.ndarray, "k size n"], loss: MaskedLoss, key: PRNGKeyArray):
        self.batches, self.loss, self.key = jnp.asarray(batches), loss, key

    def __call__(self, model: Held) -> dict[str, float]:
        measured = [_measure(self.loss, model, rows, jr.fold_in(self.key, k)) for k, rows in enumerate(self.batches)]
        return {
            "held-out loss": float(np.mean([float(cost) for cost, _ in measured])),
            "held-out accuracy": float(np.mean([float(more["accuracy"]) for _, more in measured])),
        }


# At module level, so that each evaluation finds the program compiled by the first.
_measure = eqx.filter_jit(lambda loss, model, rows, key: loss(model, rows, key))


def unigram_loss(train: Int[np.ndarray, "rows n"], held_out: Int[np.ndarray, "*more n"], vocab_size: int) -> float:
    """The loss of predicting by frequency alone, in nats: the cross entropy of the held-out word pieces under the
    training counts plus one, without special tokens.
    """
    # One is added to each count (Laplace), so that the loss of a word piece missing from training is finite.
    counts = np.bincount(train.ravel(), minlength=vocab_size)[len(SPECIAL) :] + 1.0
    held_out_counts = np.bincount(held_out.ravel(), minlength=vocab_size)[len(SPECIAL) :]
    return float(-np.sum(held_out_counts * np.log(counts / counts.sum())) / held_out_counts.sum())


# The folder is one of transformers: `config.json` and the tokenizer are plain files. Their checksums are in the header
# of `model.safetensors`, which is written last.
_FILE = SealedFile("out", "clusterjax albert", 1, "train it again", what="model")


@final
@dataclass(frozen=True)
class AlbertRecipe(AbstractRecipe):
    """The architecture and the training of an ALBERT. The defaults fit a package: under 6 MB, about an hour on a core.

    **Arguments:**

    - `vocab_size`: The number of word pieces, including special ones.
    - `embedding_size`, `hidden_size`, `num_heads`, `intermediate_size`, `num_layers`: As in `NetworkSizes`.
    - `length`: The number of tokens in a row of training, and thus the longest text that the network can read.
    - `batch_size`: The number of rows in a step.
    - `steps`: The total number of steps.
    - `epoch_steps`: The number of steps between two checkpoints, at most the number of batches that the rows make.
    - `stages`: The stages before all layers read entire rows. Each is three numbers: the number of applications of the
        shared layer, the number of tokens that it reads at a time, and the fraction of the steps at which the stage
        ends. Few layers are faster, and short pieces of text let the network find the most informative tokens, the
        neighbours, thousands of steps sooner. None selects a quarter of the layers on 16 tokens until 0.4 of the steps,
        and then on entire rows until 0.6.
    - `learning_rate`, `warm_up`: For AdamW: the rate rises for `warm_up` steps and then decays to zero as a cosine.
    - `weight_decay`: The weight decay of matrices; biases and norms have none.
    - `spread`: The standard deviation of the random weights.
    - `share`: The fraction of the tokens that is hidden.
    - `held_out`: The fraction of the texts that is never used for training.

    Source: the scheme of BERT (1810.04805) and ALBERT (1909.11942), without sentence order. Shallow networks first:
    Gong et al., *Efficient training of BERT by progressively stacking* (2019). Short texts first: BERT, Appendix A.2.
    """

    vocab_size: int = 4096
    embedding_size: int = 96
    hidden_size: int = 128
    num_heads: int = 8
    intermediate_size: int = 512
    num_layers: int = 12
    length: int = 64
    batch_size: int = 16
    steps: int = 16000
    epoch_steps: int = 200
    stages: tuple[tuple[int, int, float], ...] | None = None
    learning_rate: float = 2e-3
    warm_up: int = 600
    weight_decay: float = 0.01
    spread: float = 0.06
    share: float = 0.2
    held_out: float = 0.02

    def __post_init__(self):
        # The dataclass is frozen, so values are set by `object.__setattr__`, as in its generated `__init__`.
        keep = lambda name, value: object.__setattr__(self, name, value)  # plain numbers, for JSON
        for name, kind in self.__annotations__.items():
            if kind is int:
                least = 8 if name == "length" else 1
                keep(name, check_integer(getattr(self, name), name, least=least))
        for name, remedy in (("spread", "pass 0.02, say"), ("learning_rate", "pass 1e-3, say")):
            keep(name, check_number(getattr(self, name), name, above=0, remedy=remedy))
        keep("weight_decay", check_number(self.weight_decay, "weight_decay", least=0, remedy="pass 0.01, say"))
        for name in ("share", "held_out"):
            keep(name, check_number(getattr(self, name), name, above=0, below=1, remedy="pass 0.1, say"))
        if self.stages is not None:
            keep("stages", _stages(self.stages))
        # The ends must increase without duplicates, since otherwise a stage would have no steps.
        ends = [share for _, _, share in self.schedule]
        if ends != sorted(set(ends)) or not all(map(self._fits, self.schedule[:-1])):
            raise ValueError(
                f"stages must be triples of at most {self.num_layers} layers, of tokens that divide {self.length}, and "
                f"of a share of the steps below 1 that rises, but they are {self.stages!r}; pass () for none."
            )
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads must divide hidden_size, {self.hidden_size}, but it is {self.num_heads}; pass a divisor."
            )

    def _fits(self, stage: tuple[int, int, float]) -> bool:
        layers, length, share = stage
        return 1 <= layers <= self.num_layers and length >= 4 and self.length % length == 0 and 0 < share < 1

    @property
    def schedule(self) -> tuple[tuple[int, int, float], ...]:
        """All stages including the last: all layers, entire rows, to the end."""
        # A quarter of the layers, rounded up, so that one layer remains one.
        few, last = -(-self.num_layers // 4), (self.num_layers, self.length, 1.0)
        if self.stages is not None:
            return *self.stages, last
        # Pieces of 16 tokens are used only if they divide the row.
        return *(((few, 16, 0.4),) if self.length % 16 == 0 else ()), (few, self.length, 0.6), last

    @property
    def sizes(self) -> NetworkSizes:
        """The sizes of the network."""
        return sizes_of(SimpleNamespace(**_config(self)), Path("config.json"))


def _stages(stages: Any) -> tuple[tuple[int, int, float], ...]:
    """The stages as triples of plain numbers."""
    rule = "be triples of layers, tokens and a share of the steps"
    triples = check_sequence(stages, "stages", (tuple, list), "triples", least=0)
    for place, stage in enumerate(triples):
        if len(stage) != 3:
            raise refusal("stages", rule, f"entry {place} is {shown(stage)}", "pass () for none")
    return tuple(
        (
            check_integer(layers, f"stages[{place}][0]"),
            check_integer(length, f"stages[{place}][1]"),
            check_number(share, f"stages[{place}][2]", above=0, below=1),
        )
        for place, (layers, length, share) in enumerate(triples)
    )


def train_albert(
    out: str | Path,
    paths: Sequence[str | Path],
    recipe: AlbertRecipe | None = None,
    *,
    seed: int = 0,
    snapshots: int = 8,
    say: Callable[[str], None] = print_line,
) -> dict[str, Any]:
    """Train an ALBERT by masked language modelling, and write a folder that `load` and `transformers` read.

    The folder contains the weights, whose file has in its header the history of all checkpoints and a report with the
    held-out loss and that of predicting by frequency on the same rows; the configuration and the tokenizer; and under
    `snapshots` the weights during training, in each stage at steps that double. An interrupted run resumes, bit for
    bit, when the function is called again with the same arguments. Without a `tokenizer.json` in the folder one is
    trained.

    **Arguments:**

    - `out`: The folder, which is created if it does not exist.
    - `paths`: Files of texts, as `read_texts` reads them.
    - `recipe`: An `AlbertRecipe`; None is `AlbertRecipe()`.

    **Other arguments:**

    - `seed`: The seed for the split of the texts, the random weights and all random draws in training.
    - `snapshots`: The number of snapshots of the weights that are kept.
    - `say`: A function that receives each line of progress.

    **Returns:**

    The report that was written.

    **Raises:**

    - `ValueError` if the texts cannot be read or are too few, or the folder holds another run or another network.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942): the network; Devlin et al., *BERT: pre-training of deep
        bidirectional transformers* (1810.04805), Section 3.1: the task.
    """
    request = check_request(out, paths, recipe, AlbertRecipe, seed, snapshots, say)
    with locked(request.folder):
        return _train_in(request)


def _train_in(asked: Request) -> dict[str, Any]:
    """`train_albert` in a folder that is locked against other runs."""
    folder, recipe, seed, log = asked.folder, asked.recipe, asked.seed, asked.say
    corpus = read_corpus(asked, recipe.vocab_size, "vocab_size", pack)
    rows, held = corpus.rows, corpus.held
    if len(rows) < recipe.batch_size or len(held) < 1:
        raise ValueError(
            f"paths must hold a batch of {recipe.batch_size} rows of {recipe.length} word pieces and one held out, but "
            f"they hold {len(rows)} and {len(held)}; name more texts, or a smaller batch."
        )
    batches = len(rows) // recipe.batch_size
    # An epoch lies between two checkpoints; if there are fewer steps or batches than `epoch_steps`, it is shorter.
    recipe = replace(recipe, epoch_steps=min(recipe.epoch_steps, recipe.steps, batches))
    if batches < min(asked.recipe.epoch_steps, asked.recipe.steps):
        log(f"{recipe.epoch_steps} steps between two checkpoints: the rows make no more batches")
    held = held_batches(corpus, recipe, 64)
    base = unigram_loss(rows, held, recipe.vocab_size)
    log(f"{rows.size / 1e6:.2f} million word pieces to train on; guessing by frequency costs {base:.3f} nats")
    # A separate key, so that each evaluation hides the same tokens, independently of all other draws.
    hidden = jr.fold_in(jr.key(seed), 2)

    def stage(layers: int, tokens: int, share: float) -> Stage:
        until = round(share * recipe.epochs)
        loss = MaskedLoss(recipe.vocab_size, recipe.share, layers, tokens)
        line = f"{layers} layers, {tokens} tokens at a time, until checkpoint {until}"
        return Stage(until, loss, Evaluate(held, loss, hidden), line)

    network = Pretraining(
        Held.of(_network(recipe, seed)), _optimiser(recipe), [stage(*entry) for entry in recipe.schedule], held,
        {"unigram loss": base}, _doublings(recipe, asked.snapshots),
        snapshot=lambda path, model: _write_weights(path.with_name(f"{path.name}.safetensors"), model),
        finish=lambda model, history, report: _write(
            folder, recipe, model, tokenizer_files(folder, corpus.tokenizer, recipe.length), history, report
        ),
    )  # fmt: skip
    record = asdict(recipe) | {"stages": [list(entry) for entry in recipe.schedule]}
    report = pretrain(asked, corpus, network, recipe, record)
    log(f"held-out loss {report['held-out loss']:.3f} nats, by frequency alone {base:.3f}; in {folder}")
    return report


def _network(recipe: AlbertRecipe, seed: int) -> Network:
    """An ALBERT with random weights, smaller in the maps that write to the hidden states, and with positions that start
    as sinusoids, so that features learnt at one position generalise to the next.

    Source: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; Vaswani et al.,
    *Attention is all you need* (1706.03762), Section 3.5.
    """
    # Post-norm layers with plain random weights make the tokens nearly parallel within this depth; smaller output maps
    # prevent this.
    network: Any = Network(recipe.sizes, nnx.Rngs(seed), head=True)
    network.positions.embedding[...] = jnp.asarray(_sinusoids(recipe), jnp.float32)
    for block in network.blocks():
        for writes in (block.attention.output, block.feed_forward.out):
            writes.kernel[...] = writes.kernel[...] * (2 * recipe.num_layers) ** -0.5
    return network


def _sinusoids(recipe: AlbertRecipe) -> np.ndarray:
    """Position embeddings with the standard deviation of the random words."""
    # Wavelengths from 2 pi to 2 pi n in geometric progression, as in 1706.03762 with 10,000 in place of n.
    half = -(-recipe.embedding_size // 2)
    angles = np.arange(recipe.length)[:, None] * float(recipe.length) ** (-np.arange(half) / half)
    return np.sqrt(2) * recipe.spread * np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : recipe.embedding_size]


@functools.lru_cache(maxsize=8)  # the same object, so that a second run does not compile again
def _optimiser(recipe: AlbertRecipe) -> optax.GradientTransformation:
    warm_up = min(recipe.warm_up, recipe.steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, warm_up, recipe.steps)
    # Weight decay acts on matrices and tables; biases and the gains of norms have one axis.
    matrices = lambda tree: jax.tree_util.tree_map(lambda leaf: np.ndim(leaf) > 1, tree)
    return optax.chain(
        # Rare words give single batches far larger gradients than the others, so gradients are clipped.
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, b2=0.98, weight_decay=recipe.weight_decay, mask=matrices),
    )


def _doublings(recipe: AlbertRecipe, most: int) -> set[int]:
    """At most `most` epochs over all stages, or one for each: in each stage the last, half of it, a quarter, ..."""
    epochs, start = set(), 0
    for _, _, share in recipe.schedule:
        end = round(share * recipe.epochs)
        epochs |= {
            # end - start, half of it, a quarter, ...: weights change most early in training, so the steps of the
            # snapshots double.
            start + max(1, (end - start) >> k)
            for k in range(max(1, most // len(recipe.schedule)))
            if end > start
        }
        start = end
    return epochs


def _write_weights(path: Path, model: Held, **further: Any) -> None:
    _FILE.refuse_stranger(path)
    _FILE.write(path, tensors(model.network), None, {"format": "pt"}, **further)


def _write(
    folder: Path, recipe: AlbertRecipe, model: Held, files: dict[str, bytes], history: list[Any], report: dict[str, Any]
) -> None:
    """Write a network in the format of `transformers`; `files` are those of its tokenizer."""
    files = {"config.json": json.dumps(_config(recipe), indent=1).encode()} | files
    for name, content in files.items():
        put_file(folder / name, content, "out")
    # The weights come last: without them, the folder holds no model.
    digests = {name: checksum(content) for name, content in files.items()}
    _write_weights(folder / MODEL, model, files=digests, history=history, report=report)


def _config(recipe: AlbertRecipe) -> dict[str, Any]:
    """The entries of the `config.json` of the network."""
    return {
        "model_type": "albert", "architectures": ["AlbertForMaskedLM"], "vocab_size": recipe.vocab_size,
        "embedding_size": recipe.embedding_size, "hidden_size": recipe.hidden_size,
        "num_hidden_layers": recipe.num_layers, "num_hidden_groups": 1, "inner_group_num": 1,
        "num_attention_heads": recipe.num_heads, "intermediate_size": recipe.intermediate_size,
        "hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "max_position_embeddings": recipe.length, "type_vocab_size": 2,
        "initializer_range": recipe.spread, "tie_word_embeddings": True, "pad_token_id": PAD, "bos_token_id": CLS,
        "eos_token_id": SEP,
    }  # fmt: skip
