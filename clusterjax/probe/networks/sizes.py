"""The sizes that define a network: named tuples of plain numbers, checked on construction.

They are hashable, so that they can be static under `jax.jit`, and independent of the classes of transformers, which
change between versions. `config` reads them from a `config.json`.

Invariant: inconsistent sizes are refused before a network is made.
"""

import functools
from typing import Any, NamedTuple, TypeVar, get_args

from ..._base.checks import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_number,
    check_room,
    refusal,
    shown,
)


MOST = 2**31 - 1
LARGEST = 3.4e38  # about the largest float32, the dtype of the computations
# A network lists all of its layers, including shared ones, hence the bound.
MOST_LAYERS = 2**20
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")
CHOICES = {"activation": ACTIVATIONS, "scaling": ("default", "linear", "llama3")}
FLAGS = (
    "tied", "gated", "attention_bias", "output_bias", "feed_forward_bias", "scaled", "scaled_by_layer",
)  # fmt: skip
REALS = ("eps", "spread", "theta", "factor", "low_frequency", "high_frequency")
# Entries that some configurations lack.
NULLABLE = ("window", "spread")
# Entries that are neither numbers nor words, which `fit` checks.
OTHERS = ("sliding",)
_Sizes = TypeVar("_Sizes", bound=type)


def checked(cls: _Sizes) -> _Sizes:
    """A decorator for a named tuple, whose numbers are then checked on construction, followed by its method `fit`."""
    # `__new__`, because named tuples have no `__init__`; `_replace` and `_make` call it as well.
    make = cls.__new__

    @functools.wraps(make)
    def new(kind: Any, *args: Any, **named: Any) -> Any:
        return check_sizes(make(kind, *args, **named), kind)

    cls.__new__ = new
    return cls


def check_sizes(sizes: Any, kind: Any) -> Any:
    """Returns `sizes` if they are of this kind and consistent, and raises a ValueError otherwise."""
    check_instance(sizes, "sizes", kind, f"a {kind.__name__}", "pass those of a model, model.network.sizes, say")
    for name, value in sizes._asdict().items():
        # Optional entries may be None: a window, and the spread of random weights, which GGUF files do not contain.
        if name in OTHERS or (value is None and type(None) in get_args(kind.__annotations__[name])):
            continue
        if name in CHOICES:
            check_choice(value, name, CHOICES[name])
        elif name in FLAGS:
            check_flag(value, name)
        elif name in REALS:
            check_number(value, name, above=0, most=LARGEST)
        else:
            check_integer(value, name, most=MOST_LAYERS if name == "num_layers" else MOST)
    sizes.fit()
    return sizes


def check_weights(sizes: Any, dtype: Any) -> None:
    """Raise a ValueError if the certain parts of a network of these sizes (tables, most maps) do not fit in memory."""
    width, d = getattr(sizes, "embedding_size", sizes.hidden_size), sizes.hidden_size
    blocks = getattr(sizes, "num_blocks", sizes.num_layers)
    # Networks with rotary positions, whose sizes have a `theta`, need no position table.
    names = ("vocab_size",) if hasattr(sizes, "theta") else ("vocab_size", "max_positions", "type_vocab_size")
    tables = {name: width * getattr(sizes, name, 0) for name in names}
    maps = {"intermediate_size": 2 * blocks * d * sizes.intermediate_size}
    # Where heads have their own size, their maps may be small.
    maps["hidden_size"] = 0 if hasattr(sizes, "head_size") else 2 * blocks * d * d
    numbers = tables | maps
    name = max(numbers, key=lambda name: numbers[name])
    # int32 can index every axis, because `check_sizes` bounds each of them.
    num_bytes = sum(numbers.values()) * dtype.itemsize
    check_room(getattr(sizes, name), name, num_bytes, "the weights", remedy="make the network smaller")


@checked
class AlbertSizes(NamedTuple):
    """The sizes of an ALBERT.

    **Arguments:**

    - `vocab_size`, `embedding_size`: Rows and columns of the word embedding, which is factorised: a linear map takes it
        to `hidden_size`.
    - `hidden_size`, `num_heads`, `intermediate_size`: d, the number of heads, which divides d, and the width of the
        feed-forward.
    - `num_layers`: The number of applications of a group of layers.
    - `num_groups`, `inner_layers`: The number of groups, which divide these applications evenly, and of layers in each.
    - `activation`: "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu" or "swish", as `transformers` names them.
    - `max_positions`, `type_vocab_size`: Rows of the embeddings of positions and token types.
    - `eps`: The epsilon of the layer norms.
    - `tied`: True if the masked-LM head uses the word embedding.
    - `spread`: The standard deviation of random weights.

    **Raises:**

    - `ValueError` if a number is not positive, the heads do not divide the hidden size, or the activation is unknown.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1 and Table 1; the defaults are those of
        `transformers.AlbertConfig` that all published checkpoints share.
    """

    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_layers: int
    num_groups: int = 1
    inner_layers: int = 1
    activation: str = "gelu_new"
    max_positions: int = 512
    type_vocab_size: int = 2
    eps: float = 1e-12
    tied: bool = True
    spread: float = 0.02

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_groups * self.inner_layers

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        check_heads(self.hidden_size, self.num_heads, "num_heads")


@checked
class T5Sizes(NamedTuple):
    """The sizes of a T5 encoder.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the embedding.
    - `num_heads`, `head_size`: The number of heads and their dimension; the product need not be `hidden_size`.
    - `intermediate_size`: The width of the feed-forward.
    - `num_layers`: The number of blocks of the encoder.
    - `activation`, `gated`: The activation of the feed-forward, and True if it is gated.
    - `num_buckets`, `max_distance`: The buckets and the largest distinguished distance of the relative positions.
    - `eps`: The epsilon of the RMS norms.
    - `factor`: Multiplies all random weights, each of which has its own standard deviation, and the scales of the
        norms; `initializer_factor` of a configuration.

    **Raises:**

    - `ValueError` if a number is not positive, there are fewer than 4 buckets, `max_distance` does not exceed a quarter
        of their number, or the activation is unknown.

    ??? cite "Source"

        Raffel et al., *Exploring the limits of transfer learning with a unified text-to-text transformer*
        (1910.10683), Section 2.1.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    head_size: int
    intermediate_size: int
    num_layers: int
    activation: str = "relu"
    gated: bool = False
    num_buckets: int = 32
    max_distance: int = 128
    eps: float = 1e-6
    factor: float = 1.0

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_layers

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        # With four buckets each direction has one for small and one for large distances. If every distance up to
        # `max_distance` had its own bucket, none would be left to share.
        check_integer(self.num_buckets, "num_buckets", least=4, most=MOST)
        check_integer(self.max_distance, "max_distance", least=self.num_buckets // 4 + 1, most=MOST)


@checked
class BertSizes(NamedTuple):
    """The sizes of a BERT.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the word embedding.
    - `num_heads`, `intermediate_size`: The number of heads, which divides the hidden size, and the feed-forward width.
    - `num_layers`: The number of layers, each with its own weights.
    - `activation`: As in `AlbertSizes`.
    - `max_positions`, `type_vocab_size`: Rows of the embeddings of positions and token types.
    - `eps`: The epsilon of the layer norms.
    - `tied`: True if the masked-LM head uses the word embedding.
    - `spread`: The standard deviation of random weights.

    **Raises:**

    - `ValueError` if a number is not positive, the heads do not divide the hidden size, or the activation is unknown.

    ??? cite "Source"

        Devlin et al., *BERT: pre-training of deep bidirectional transformers for language understanding* (1810.04805),
        Section 3; the defaults are those of `transformers.BertConfig`.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_layers: int
    activation: str = "gelu"
    max_positions: int = 512
    type_vocab_size: int = 2
    eps: float = 1e-12
    tied: bool = True
    spread: float = 0.02

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_layers

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        check_heads(self.hidden_size, self.num_heads, "num_heads")


def check_heads(hidden_size: int, heads: Any, name: str) -> int:
    """Returns `heads` as an integer if it divides the hidden size, and raises a ValueError otherwise."""
    try:
        number = check_integer(heads, name)
    except ValueError:
        number = 0
    if not number or hidden_size % number:
        rule = f"divide the hidden size, {hidden_size}"
        raise refusal(name, rule, f"it is {shown(heads)}", "pass a divisor of it") from None
    return number


def albert_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `AlbertSizes` from a configuration of transformers; `place` names its source in messages."""
    # Version 4 of transformers could build ALBERT with relative positions; no published checkpoint has them.
    positions = getattr(config, "position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(
            f"config must have absolute positions, but in {place} position_embedding_type is {positions!r}; name "
            "another checkpoint."
        )
    return dict(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_groups=config.num_hidden_groups,
        inner_layers=config.inner_group_num,
        activation=config.hidden_act,
        max_positions=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        eps=config.layer_norm_eps,
        # None means tied, as in transformers.
        tied=config.tie_word_embeddings is not False,
        spread=config.initializer_range,
    )


def t5_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `T5Sizes` from a configuration of transformers."""
    return dict(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        num_heads=config.num_heads,
        head_size=config.d_kv,
        intermediate_size=config.d_ff,
        num_layers=config.num_layers,
        activation=config.dense_act_fn,
        gated=bool(config.is_gated_act),
        num_buckets=config.relative_attention_num_buckets,
        max_distance=config.relative_attention_max_distance,
        eps=config.layer_norm_epsilon,
        factor=config.initializer_factor,
    )


def bert_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `BertSizes` from a configuration of transformers; `place` names its source in messages."""
    # Version 5 of transformers has no relative positions, and would read such a file as if they were absolute.
    positions = getattr(config, "position_embedding_type", None)
    if positions not in (None, "absolute"):
        raise ValueError(
            f"config must have absolute positions, but in {place} position_embedding_type is {positions!r}; name "
            "another checkpoint."
        )
    if getattr(config, "is_decoder", False):
        raise ValueError(f"config must be of an encoder, but in {place} is_decoder is true; name another checkpoint.")
    return dict(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        activation=config.hidden_act,
        max_positions=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        eps=config.layer_norm_eps,
        # None means tied, as in transformers.
        tied=config.tie_word_embeddings is not False,
        spread=config.initializer_range,
    )


# The sizes of a Llama, and their names in the configurations of Llama, Mistral and Qwen2.
#
# Rotary positions: Su et al., *RoFormer* (2104.09864). Heads that share keys and values: Ainslie et al., *GQA*
# (2305.13245). Sliding windows: Jiang et al., *Mistral 7B* (2310.06825).
#
# Invariants: inconsistent sizes are refused before a network is made; an unsupported rope_type is refused by name.


@checked
class LlamaSizes(NamedTuple):
    """The sizes of a Llama, a Mistral or a Qwen2.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the embedding.
    - `num_heads`, `num_shared`: The number of heads of queries, and of keys and values, each of which serves equally
        many consecutive heads of queries.
    - `head_size`: The dimension of each head, even; times `num_heads` it need not be `hidden_size`.
    - `intermediate_size`: The width of the feed-forward.
    - `num_layers`: The number of blocks.
    - `activation`: "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh" or "relu", as `transformers` names them.
    - `max_positions`: The longest text.
    - `eps`: The epsilon of the RMS norms.
    - `tied`: True if words are scored by the embedding.
    - `attention_bias`, `output_bias`, `feed_forward_bias`: True if the maps to queries, keys and values, the output map
        of attention, and the maps of the feed-forward have biases.
    - `window`: The number of tokens to which each token attends, itself the last; None allows all earlier tokens.
    - `sliding`: For each layer, True if the window applies; None applies it in all layers.
    - `theta`: The base of the rotary frequencies.
    - `scaling`: The change of these frequencies: none ("default"), division of all by `factor` ("linear"), or of the
        low ones ("llama3").
    - `factor`, `low_frequency`, `high_frequency`, `original_positions`: The parameters of the scaling. "llama3" divides
        frequencies with fewer than `low_frequency` turns in `original_positions` tokens, and keeps those with more than
        `high_frequency`.
    - `spread`: The standard deviation of random weights; None if unknown, as for GGUF files.

    **Raises:**

    - `ValueError` if a number is not positive, `num_shared` does not divide the heads, `head_size` is odd, `sliding`
        does not cover each layer, the frequencies of the scaling are out of order, or a choice is unknown.

    ??? cite "Source"

        Touvron et al., *LLaMA: open and efficient foundation language models* (2302.13971), Section 2.2; the defaults
        are those of `transformers.LlamaConfig`.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_shared: int
    head_size: int
    intermediate_size: int
    num_layers: int
    activation: str = "silu"
    max_positions: int = 2048
    eps: float = 1e-6
    tied: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    window: int | None = None
    sliding: tuple[bool, ...] | None = None
    theta: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    original_positions: int = 8192
    spread: float | None = 0.02

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_layers

    @property
    def widths(self) -> list[int] | None:
        """The number of tokens to which each token attends, for each layer; None if no layer has a window."""
        if self.window is None:
            return None
        sliding = (True,) * self.num_layers if self.sliding is None else self.sliding
        return [self.window if slides else MOST for slides in sliding]

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        if self.num_heads % self.num_shared:
            rule = f"divide num_heads, {self.num_heads}"
            raise refusal("num_shared", rule, f"it is {self.num_shared}", "pass a divisor of it")
        check_integer(self.head_size, "head_size", least=2, most=MOST)
        if self.head_size % 2:
            raise refusal("head_size", "be even", f"it is {self.head_size}", "pass twice as many as there are angles")
        if self.sliding is not None and not (
            isinstance(self.sliding, tuple)
            and len(self.sliding) == self.num_layers
            and all(isinstance(slides, bool) for slides in self.sliding)
        ):
            rule = f"be None or a tuple of True and False, one for each of {self.num_layers} layers"
            raise refusal("sliding", rule, f"it is {shown(self.sliding)}", "pass None for a window in each layer")
        if self.scaling == "llama3" and self.low_frequency >= self.high_frequency:
            rule = f"be below high_frequency, {self.high_frequency}"
            raise refusal("low_frequency", rule, f"it is {self.low_frequency}", "pass 1 and 4, say")


def llama_fit(sizes: dict[str, Any], place: str) -> None:
    """Raise a ValueError unless the sizes of a configuration fit together."""
    heads, shared, size = sizes["num_heads"], sizes["num_shared"], sizes["head_size"]
    if heads % shared:
        raise ValueError(
            f"config must have a num_key_value_heads that divides the number of heads, {heads}, but in {place} it is "
            f"{shared}; mend it."
        )
    if size % 2:
        raise ValueError(f"config must have heads of an even size, but in {place} it is {size}; mend it.")
    if sizes["scaling"] == "llama3" and sizes["low_frequency"] >= sizes["high_frequency"]:
        raise ValueError(
            f"config must have a low_freq_factor below the high_freq_factor, {sizes['high_frequency']}, but in {place} "
            f"it is {sizes['low_frequency']}; mend it."
        )
    if sizes["sliding"] is not None and len(sizes["sliding"]) != sizes["num_layers"]:
        raise ValueError(
            f"config must have a layer_type for each of {sizes['num_layers']} layers, but in {place} it has "
            f"{len(sizes['sliding'])}; mend it."
        )


def llama_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `LlamaSizes` from a configuration of transformers; `place` names its source in messages."""
    window = getattr(config, "sliding_window", None) if config.model_type != "llama" else None
    # The configurations of Mistral and Qwen2 have no entries for biases: Mistral has none, and Qwen2 `attention_bias`.
    llama, qwen = config.model_type == "llama", config.model_type == "qwen2"
    return dict(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_shared=config.num_key_value_heads,
        head_size=_head_size(config, place),
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        activation=config.hidden_act,
        max_positions=config.max_position_embeddings,
        eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        attention_bias=qwen or (llama and bool(config.attention_bias)),
        output_bias=llama and bool(config.attention_bias),
        feed_forward_bias=llama and bool(config.mlp_bias),
        window=window,
        sliding=None if window is None else _sliding(config, place),
        spread=config.initializer_range,
        **_rope(config, place),
    )


def _head_size(config: Any, place: str) -> Any:
    size = getattr(config, "head_dim", None)
    if size is not None:
        return size
    hidden, heads = config.hidden_size, config.num_attention_heads
    whole = isinstance(hidden, int) and isinstance(heads, int) and heads > 0
    if whole and hidden % heads:
        raise ValueError(
            f"config must have a num_attention_heads that divides the hidden size, {hidden}, or a head_dim, but in "
            f"{place} it is {heads}; mend it."
        )
    # A value that is not a number is refused later, under its own name.
    return hidden // heads if whole else 2


def _sliding(config: Any, place: str) -> tuple[bool, ...] | None:
    """True for each layer that has the window; None without such entries."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return None
    known = ("full_attention", "sliding_attention")
    # transformers ignores the layer_types of a Mistral and applies the window in all layers.
    allowed = known[1:] if config.model_type == "mistral" else known
    wrong = [kind for kind in kinds if kind not in allowed]
    if wrong:
        raise ValueError(
            f"config must have layer_types among {', '.join(allowed)}, but in {place} one is {wrong[0]!r}; name "
            "another checkpoint."
        )
    return tuple(kind == "sliding_attention" for kind in kinds)


def _rope(config: Any, place: str) -> dict[str, Any]:
    """The base and the scaling of the rotary frequencies."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:  # version 4 of transformers
        theta = getattr(config, "rope_theta", 10000.0)
        rope = {"rope_theta": theta} | (getattr(config, "rope_scaling", None) or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    # Other networks have a base for each kind of layer, or rotate only a part of each head.
    other = [name for name, value in rope.items() if isinstance(value, dict)]
    if rope.get("partial_rotary_factor") not in (None, 1):
        other.append("partial_rotary_factor")
    if kind not in CHOICES["scaling"] or other:
        scaling = f"it has {other[0]}" if other else f"it is {kind!r}"
        raise ValueError(
            f"config must have a rope_type among {', '.join(CHOICES['scaling'])} for all layers and whole heads, but "
            f"in {place} {scaling}; name another checkpoint."
        )
    scaling = {"theta": rope.get("rope_theta", 10000.0), "scaling": kind}
    if kind != "default":
        scaling["factor"] = rope.get("factor")
    if kind == "llama3":
        scaling |= {
            "low_frequency": rope.get("low_freq_factor"),
            "high_frequency": rope.get("high_freq_factor"),
            "original_positions": rope.get("original_max_position_embeddings"),
        }
    return scaling
