"""Training an ALBERT of one's own: word pieces, masked language modelling, and snapshots of the way there."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace as changed
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import safetensors.numpy
from flax import nnx

from .._check import (
    check_instance,
    check_integer,
    check_number,
    check_path,
    check_say,
    check_sequence,
    refusal,
    shown,
)
from .._corpus import (
    CLS,
    PAD,
    SEP,
    check_paths,
    cut,
    digest_of,
    pack,
    read_texts,
    set_aside,
    some_batches,
    tokenizer_of,
    write_tokenizer,
)
from .._disk import write_folder
from .._json import read_json
from .._lock import locked
from .._say import say as print_line
from .._training import Batches, train
from ._albert import Albert
from ._masked import Evaluate, Held, MaskedLoss, unigram_loss
from ._names import tensors
from ._sizes import AlbertSizes


CHECKPOINT = "checkpoint.safetensors"
_WEIGHTS, _CONFIG, _REPORT, _HISTORY = "model.safetensors", "config.json", "report.json", "history.json"


@final
@dataclass(frozen=True)
class AlbertRecipe:
    """How an ALBERT is built and trained. The defaults fit a package: under 6 MB, and about an hour on one core.

    **Arguments:**

    - `vocab_size`: Word pieces, special ones included.
    - `embedding_size`, `hidden_size`, `num_heads`, `intermediate_size`, `num_layers`: As in `AlbertSizes`.
    - `length`: Tokens in a row of training, and so the longest text that the network can read.
    - `batch_size`: Rows in a step.
    - `steps`: Steps in all.
    - `epoch_steps`: Steps between two checkpoints; at most so many as the rows make batches.
    - `stages`: What comes before all layers read whole rows. Each is three numbers: how many times the shared layer is
        applied, how many tokens it reads at a time, and until which share of the steps. Few layers are faster, and in
        short pieces of text the neighbours, which tell most, are found thousands of steps sooner. None is a quarter of
        the layers on 16 tokens for 0.4 of the steps, and then on whole rows until 0.6.
    - `learning_rate`, `warm_up`: Of AdamW, whose rate rises for `warm_up` steps and falls to nothing as a cosine.
    - `weight_decay`: Of matrices, not of biases and norms.
    - `spread`: The standard deviation of the random weights.
    - `share`: Of the tokens, hidden.
    - `held_out`: Of the texts, never trained on.

    Source: this library; the scheme is that of BERT (1810.04805) and ALBERT (1909.11942), without sentence order. That
    a shallow network may be trained first: Gong et al., *Efficient training of BERT by progressively stacking* (2019);
    that short texts may: BERT, Appendix A.2.
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
        keep = lambda name, value: object.__setattr__(self, name, value)  # plain numbers, which JSON can hold
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
        """All stages, with the last: all layers, whole rows, to the end."""
        few, last = -(-self.num_layers // 4), (self.num_layers, self.length, 1.0)
        if self.stages is not None:
            return *self.stages, last
        return *(((few, 16, 0.4),) if self.length % 16 == 0 else ()), (few, self.length, 0.6), last

    @property
    def epochs(self) -> int:
        """Checkpoints in all."""
        return -(-self.steps // self.epoch_steps)

    def steps_until(self, epoch: int) -> int:
        """Steps before the checkpoint of this number; before the last there may be fewer than between two others.

        **Raises:**

        - `ValueError` if `epoch` is not an integer of at least 0.

        Source: this library.
        """
        return min(check_integer(epoch, "epoch", least=0) * self.epoch_steps, self.steps)

    @property
    def sizes(self) -> AlbertSizes:
        """Of the network."""
        return AlbertSizes(
            self.vocab_size, self.embedding_size, self.hidden_size, self.num_heads, self.intermediate_size,
            self.num_layers, max_positions=self.length, spread=self.spread,
        )  # fmt: skip


def _stages(stages: Any) -> tuple[tuple[int, int, float], ...]:
    """The stages as triples of plain numbers."""
    rule = "be triples of layers, tokens and a share of the steps"
    found = check_sequence(stages, "stages", (tuple, list), "triples", least=0)
    for place, stage in enumerate(found):
        if len(stage) != 3:
            raise refusal("stages", rule, f"entry {place} is {shown(stage)}", "pass () for none")
    return tuple(
        (
            check_integer(layers, f"stages[{place}][0]"),
            check_integer(length, f"stages[{place}][1]"),
            check_number(share, f"stages[{place}][2]", above=0, below=1),
        )
        for place, (layers, length, share) in enumerate(found)
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

    The folder holds the weights, configuration and tokenizer, the history of every checkpoint, a report with the
    held-out loss beside that of guessing by frequency on the same rows, and under `snapshots` the weights along the
    way, in each stage at steps that double. A run that was killed goes on, bit for bit, when it is called again in the
    same way. A `tokenizer.json` that is in the folder is used; without one it is trained, which is not the same twice:
    among word pieces that are equally good the library tokenizers chooses at random.

    **Arguments:**

    - `out`: The folder, made if it is not there.
    - `paths`: Files of texts, as `read_texts` reads them.
    - `recipe`: An `AlbertRecipe`; None is `AlbertRecipe()`.

    **Other arguments:**

    - `seed`: Of the split of the texts, the random weights and all that is drawn in training.
    - `snapshots`: How many weights along the way are kept.
    - `say`: Is given each line of progress.

    **Returns:**

    The report, as it was written.

    **Raises:**

    - `ValueError` if the texts cannot be read or are too few, or the folder holds another run or another network.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942): the network; Devlin et al., *BERT: pre-training of deep
        bidirectional transformers* (1810.04805), Section 3.1: the task. Snapshots and report: this library.
    """
    folder = check_path(out, "out")
    paths = check_paths(paths)
    recipe = AlbertRecipe() if recipe is None else recipe
    check_instance(recipe, "recipe", AlbertRecipe, "an AlbertRecipe", "pass AlbertRecipe(), say")
    seed = check_integer(seed, "seed", least=0, most=2**63 - 1, remedy="pass 0, say")
    snapshots = check_integer(snapshots, "snapshots", least=0, remedy="pass 8, say")
    check_say(say)
    with locked(folder):
        return _train_in(folder, paths, recipe, seed, snapshots, say)


def _train_in(
    folder: Path,
    paths: Sequence[str | Path],
    recipe: AlbertRecipe,
    seed: int,
    snapshots: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`train_albert` in a folder that no other run writes to."""
    texts = read_texts(paths)
    aside = set_aside(len(texts), recipe.held_out, seed)
    seen, unseen = ([text for text, a in zip(texts, aside, strict=True) if a == flag] for flag in (False, True))
    say(f"{len(seen)} texts to train on, {len(unseen)} held out")
    tokenizer = tokenizer_of(folder, seen, recipe.vocab_size)
    rows, held = (pack(cut(tokenizer, part), recipe.length) for part in (seen, unseen))
    if len(rows) < recipe.batch_size or len(held) < 1:
        raise ValueError(
            f"paths must hold a batch of {recipe.batch_size} rows of {recipe.length} word pieces and one held out, but "
            f"they hold {len(rows)} and {len(held)}; name more texts, or a smaller batch."
        )
    recipe = changed(recipe, epoch_steps=min(recipe.epoch_steps, recipe.steps))
    if len(rows) // recipe.batch_size < recipe.epoch_steps:
        recipe = changed(recipe, epoch_steps=len(rows) // recipe.batch_size)
        say(f"{recipe.epoch_steps} steps between two checkpoints: the rows make no more batches")
    held = some_batches(held, recipe.batch_size, 64)
    base = unigram_loss(rows, held, recipe.vocab_size)
    say(f"{rows.size / 1e6:.2f} million word pieces to train on; guessing by frequency costs {base:.3f} nats")
    key = jr.key(seed)
    made = Held.of(_network(recipe, seed))
    stages = [list(stage) for stage in recipe.schedule]
    settings = {"recipe": asdict(recipe) | {"stages": stages}, "seed": seed, "texts": [Path(p).name for p in paths]}
    settings |= {"word pieces": int(rows.size), "sum": int(rows.sum(dtype=np.int64)), "data": digest_of(rows, held)}
    batches = Batches((jnp.asarray(rows),), recipe.batch_size, recipe.epoch_steps)
    going = functools.partial(
        train, made, batches=batches, optimiser=_optimiser(recipe), key=jr.fold_in(key, 1),
        checkpoint=folder / CHECKPOINT, settings=settings, steps=recipe.steps,
    )  # fmt: skip
    if (folder / CHECKPOINT).is_file():
        going(loss=MaskedLoss(recipe.vocab_size), epochs=0)  # compares the settings before anything is written
    else:
        _refuse_another(folder, settings)
    write_tokenizer(folder, tokenizer, recipe.length)
    wanted = _doublings(recipe, snapshots)

    def keep(epoch: int, model: Held) -> None:
        if epoch in wanted:
            _write_weights(folder / "snapshots" / f"step-{recipe.steps_until(epoch):06d}.safetensors", model)

    if not (folder / CHECKPOINT).is_file():
        _write_weights(folder / "snapshots" / "step-000000.safetensors", made)
    for layers, tokens, share in recipe.schedule:
        until = round(share * recipe.epochs)
        say(f"{layers} layers, {tokens} tokens at a time, until checkpoint {until}")
        loss = MaskedLoss(recipe.vocab_size, recipe.share, layers, tokens)
        done = going(loss=loss, epochs=until, evaluate=Evaluate(held, loss, jr.fold_in(key, 2)), keep=keep, say=say)
    _write_config(folder, recipe)
    _write_weights(folder / _WEIGHTS, done.last)
    report = settings | {
        "steps": recipe.steps,
        "word pieces seen": recipe.steps * recipe.batch_size * recipe.length,
        "parameters": int(sum(np.size(leaf) for leaf in jax.tree_util.tree_leaves(done.last.state))),
        "held-out loss": done.history[-1]["held-out loss"],
        "held-out accuracy": done.history[-1]["held-out accuracy"],
        "unigram loss": base,
    }
    contents = {_HISTORY: done.history, _REPORT: report}
    write_folder(folder, {name: json.dumps(content, indent=1).encode() for name, content in contents.items()})
    say(f"held-out loss {report['held-out loss']:.3f} nats, by frequency alone {base:.3f}; in {folder}")
    return report


def _refuse_another(folder: Path, settings: dict[str, Any]) -> None:
    """Raise a ValueError if there is a network in the folder, but not that of a finished run with these settings."""
    found = [name for name in (_CONFIG, _WEIGHTS) if (folder / name).exists()]
    try:
        report = read_json(folder / _REPORT, dict, argument="out", remedy="choose another") if found else settings
        same = {name: report.get(name) for name in settings} == settings
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"out must be a new folder or that of this run, but {str(folder)!r} holds {found[0]} of another network "
            f"and no {CHECKPOINT}; choose another folder."
        )


def _network(recipe: AlbertRecipe, seed: int) -> Albert:
    """With random weights, those that write to the hidden states smaller, so that no depth gathers the tokens at once;
    positions start as sinusoids, so that what is learnt of one place holds at the next.

    Source: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; Vaswani et al.,
    *Attention is all you need* (1706.03762), Section 3.5.
    """
    network = Albert(recipe.sizes, nnx.Rngs(seed), head=True)
    network.embeddings.position_embeddings.embedding[...] = jnp.asarray(_sinusoids(recipe), jnp.float32)
    for block in network.blocks():
        for writes in (block.attention.dense, block.ffn_output):
            writes.kernel[...] = writes.kernel[...] * (2 * recipe.num_layers) ** -0.5
    return network


def _sinusoids(recipe: AlbertRecipe) -> np.ndarray:
    """Positions of the size of the random words; the wavelengths go from 2 pi to 2 pi times the length."""
    half = -(-recipe.embedding_size // 2)
    angles = np.arange(recipe.length)[:, None] * float(recipe.length) ** (-np.arange(half) / half)
    return np.sqrt(2) * recipe.spread * np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : recipe.embedding_size]


@functools.lru_cache(maxsize=8)  # the same object, so that a second run compiles nothing anew
def _optimiser(recipe: AlbertRecipe) -> optax.GradientTransformation:
    warm_up = min(recipe.warm_up, recipe.steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, warm_up, recipe.steps)
    matrices = lambda tree: jax.tree_util.tree_map(lambda leaf: np.ndim(leaf) > 1, tree)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, b2=0.98, weight_decay=recipe.weight_decay, mask=matrices),
    )


def _doublings(recipe: AlbertRecipe, most: int) -> set[int]:
    """At most `most` epochs for all stages, or one for each; in each stage its last, half of it, a quarter, ..."""
    found, start = set(), 0
    for _, _, share in recipe.schedule:
        end = round(share * recipe.epochs)
        found |= {
            start + max(1, (end - start) >> k) for k in range(max(1, most // len(recipe.schedule))) if end > start
        }
        start = end
    return found


def _write_weights(path: Path, model: Held) -> None:
    write_folder(path.parent, {path.name: safetensors.numpy.save(tensors(model.network), {"format": "pt"})})


def _write_config(folder: Path, recipe: AlbertRecipe) -> None:
    sizes = recipe.sizes
    config = {
        "model_type": "albert", "architectures": ["AlbertForMaskedLM"], "vocab_size": sizes.vocab_size,
        "embedding_size": sizes.embedding_size, "hidden_size": sizes.hidden_size, "num_hidden_layers": sizes.num_layers,
        "num_hidden_groups": 1, "inner_group_num": 1, "num_attention_heads": sizes.num_heads,
        "intermediate_size": sizes.intermediate_size, "hidden_act": sizes.activation, "layer_norm_eps": sizes.eps,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": sizes.max_positions,
        "type_vocab_size": sizes.type_vocab_size, "initializer_range": sizes.spread, "tie_word_embeddings": True,
        "pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": SEP,
    }  # fmt: skip
    write_folder(folder, {_CONFIG: json.dumps(config, indent=1).encode()})
