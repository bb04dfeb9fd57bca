"""The sizes of a Llama, and their names in the configurations of Llama, Mistral and Qwen2.

Rotary positions: Su et al., *RoFormer* (2104.09864). Heads that share keys and values: Ainslie et al., *GQA*
(2305.13245). Sliding windows: Jiang et al., *Mistral 7B* (2310.06825).

Invariants: inconsistent sizes are refused before a network is made; an unsupported rope_type is refused by name.
"""

from typing import Any, NamedTuple

from ..._check import check_integer, refusal, shown
from .sizes import CHOICES, MOST, checked


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
        found = f"it has {other[0]}" if other else f"it is {kind!r}"
        raise ValueError(
            f"config must have a rope_type among {', '.join(CHOICES['scaling'])} for all layers and whole heads, but "
            f"in {place} {found}; name another checkpoint."
        )
    found = {"theta": rope.get("rope_theta", 10000.0), "scaling": kind}
    if kind != "default":
        found["factor"] = rope.get("factor")
    if kind == "llama3":
        found |= {
            "low_frequency": rope.get("low_freq_factor"),
            "high_frequency": rope.get("high_freq_factor"),
            "original_positions": rope.get("original_max_position_embeddings"),
        }
    return found
