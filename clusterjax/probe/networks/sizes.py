"""The sizes that define a network: one named tuple of plain numbers for all families, checked on construction.

Sizes are hashable, so that they can be static under `jax.jit`, and independent of the classes of transformers, which
change between versions. The families read them from a `config.json`.

Invariant: sizes that do not fit together are refused before a network is made.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_args

from ..._base.checks import check_instance, check_integer, check_room, refusal, shown


MOST = 2**31 - 1
LARGEST = 3.4e38  # about the largest float32, the dtype of the computations
# A network lists all of its layers, including shared ones, hence the bound.
MOST_LAYERS = 2**20
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")
CHOICES = {
    "activation": ACTIVATIONS,
    "head_activation": ACTIVATIONS,
    "positions": ("none", "learned", "sinusoidal"),
    "norm": ("layer", "rms"),
    "norm_place": ("before", "after", "both", "update", "none"),
    "head_norm": ("none", "head", "whole"),
    "head": ("linear", "masked", "none"),
    "scaling": ("default", "linear", "dynamic", "llama3", "yarn"),
}
# Numbers that may be zero: a part that the network does not have.
_ZERO = ("intermediate_size", "position_offset", "num_buckets", "distances")


_Sizes = TypeVar("_Sizes", bound=type)


def _checked(cls: _Sizes) -> _Sizes:
    """A decorator for a named tuple, whose fields are then checked on construction."""
    # `__new__`, because named tuples have no `__init__`; `_replace` and `_make` call it as well.
    make: Any = cls.__new__

    @functools.wraps(make)
    def new(kind: Any, *args: Any, **named: Any) -> Any:
        sizes = make(kind, *args, **named)
        values = sizes._asdict()
        for problem in misfits(values) if cls is NetworkSizes else field_misfits(values, kind=cls):
            raise refusal(problem.field, problem.must, f"it is {shown(problem.value)}", "pass another")
        return sizes

    cls.__new__ = new
    return cls


@_checked
class Rotary(NamedTuple):
    """The frequencies of rotary positions.

    **Arguments:**

    - `theta`: The base of the frequencies.
    - `scaling`: The change of the frequencies after training: none ("default"), division of all by `factor`
        ("linear"), of those with few turns in `original_positions` tokens ("llama3", "yarn"), or a larger base for
        texts of more than `original_positions` tokens ("dynamic").
    - `factor`, `original_positions`: The factor, and the number of positions of the training.
    - `low`, `high`: Frequencies of fewer than `low` turns are divided, and those of more than `high` turns are kept.
    - `truncate`: True if "yarn" rounds these bounds to whole pairs of entries.
    - `amplitude`: The factor of the cosines and sines ("yarn").

    ??? cite "Source"

        Su et al., *RoFormer* (2104.09864), Section 3.2; Peng et al., *YaRN* (2309.00071), Section 3; the scaling of
        Llama 3.1 is that of `transformers`.
    """

    theta: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    original_positions: int = 8192
    low: float = 1.0
    high: float = 4.0
    truncate: bool = True
    amplitude: float = 1.0


@_checked
class Patches(NamedTuple):
    """The images that a network reads, divided into square patches.

    **Arguments:**

    - `image_size`, `patch_size`: The number of pixels of an edge.
    - `channels`: The number of colours.
    """

    image_size: int
    patch_size: int
    channels: int = 3

    @property
    def num_tokens(self) -> int:
        """The number of patches, and one more for the class token in front of them."""
        return (self.image_size // self.patch_size) ** 2 + 1


@_checked
class NetworkSizes(NamedTuple):
    """The numbers and options that define a network except for its weights.

    **Arguments:**

    - `family`: The `model_type` of the configuration, which decides the names of the parameters in files.
    - `vocab_size`, `hidden_size`, `num_heads`, `intermediate_size`, `num_layers`: The number of words, the dimension d
        of the residual stream, the number of heads, the number of neurons (0 for no feed-forward), of layers.
    - `num_groups`, `inner_layers`: The number of groups of layers with their own weights, which divide the layers
        evenly, and of layers in each application of a group (ALBERT); None gives each layer its own weights.

    The embedding:

    - `embedding_size`: The dimension of the word embedding, if a linear map takes it to d; None is d.
    - `project_first`, `projection_bias`: True if this map precedes the positions, and if the map has a bias.
    - `embedding_norm`, `embedding_scale`: True for a norm of the embedding; the factor of the words, None is 1.
    - `type_vocab_size`: The number of token types; None for none.
    - `max_positions`: The longest text; None for no limit.
    - `positions`, `position_offset`, `position_base`: "learned" positions, whose first rows are not used; "sinusoidal"
        ones with a base; or "none", where positions enter in the attention.
    - `patches`: The patches of the images that the network reads in place of words; None for words.

    The attention:

    - `causal`: True if no token attends to a later one.
    - `num_shared`: The number of heads of keys and values, each of which serves equally many consecutive heads of
        queries; None is `num_heads`.
    - `head_size`: k, the dimension of a head; None is d over the number of heads.
    - `scale`, `scaled_by_layer`: The factor of the scores, None is 1 / sqrt(k); True divides them by the number of the
        layer, from 1, as well.
    - `temperatures`: True if each head of each layer multiplies its scores by a separate number.
    - `score_cap`: c of the scores c tanh(s / c); None leaves them as they are.
    - `attention_bias`, `output_bias`: True if the maps to queries, keys and values, and the output map, have biases.
    - `head_norm`: "head" for a norm of each query and key, "whole" for one norm of all of them, "none" for none.
    - `window`, `sliding`: The window, if tokens attend only to distances less than the window, or None; True for each
        layer that has the window, or None for all layers.
    - `rotary`, `rotary_size`, `rotary_kinds`: The `Rotary` positions, one or several kinds; the number of entries of a
        head that are rotated, None is all; the kind of each layer, -1 for no rotation, None for the first in all.
    - `num_buckets`, `max_distance`: The buckets and the largest distinguished distance of the biases of T5; 0 for none.
    - `alibi`: True if the scores have a bias that falls linearly with the distance.
    - `distances`, `distance_values`: The number of learnt vectors of distances; True if values have such vectors too.

    The norms and the feed-forward:

    - `norm`, `norm_bias`, `eps`: "layer" or "rms", with or without a bias, and the epsilon.
    - `unit_offset`: True if the scale of the norms is 1 plus its parameter.
    - `norm_place`: "before" each part, "after" each addition, "both" before each part and on its update, "update" on
        the update only, or "none".
    - `parallel`: True if the feed-forward reads the stream that enters the block.
    - `last_norm`: True for a norm after the last layer.
    - `first_unnormed`: True if the first attention reads the stream without a norm.
    - `update_scale`: True if the update of each part is multiplied by a learnt vector.
    - `activation`, `gated`: The activation, by its name in `transformers`; True if it multiplies a second map.
    - `bias_in`, `bias_out`: True if the maps of the feed-forward have biases.

    The head:

    - `head`: "linear"; "masked" for a map, an activation and a norm before the scores; or "none".
    - `head_activation`, `head_map_bias`: The activation of a masked head, None is `activation`; the bias of its map.
    - `tied`: True if words are scored by their embedding.
    - `logit_cap`: c of the scores c tanh(s / c) of words; None leaves them as they are.

    Random weights:

    - `spread`: The standard deviation of random weights; None if it is not known, as for GGUF files.
    - `factor`: The factor of the random weights of a T5, each of which has its own standard deviation; None for others.
    - `scaled_outputs`: True if maps that write to the stream are smaller by the square root of twice the layers.

    **Raises:**

    - `ValueError` if a number is not positive, a choice is unknown, or the sizes do not fit together.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3. Shared layers: Lan et al., *ALBERT*
        (1909.11942). Shared keys: Ainslie et al., *GQA* (2305.13245). Windows: Jiang et al., *Mistral 7B* (2310.06825).
        Biases of distances: Raffel et al., *T5* (1910.10683), Press et al., *ALiBi* (2108.12409), and Shaw et al.
        (1803.02155). Caps and norms of updates: Gemma Team, *Gemma 2* (2408.00118).
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_layers: int
    num_groups: int | None = None
    inner_layers: int = 1
    embedding_size: int | None = None
    project_first: bool = False
    projection_bias: bool = True
    embedding_norm: bool = False
    embedding_scale: float | None = None
    type_vocab_size: int | None = None
    max_positions: int | None = None
    positions: str = "none"
    position_offset: int = 0
    position_base: float = 10000.0
    patches: Patches | None = None
    causal: bool = True
    num_shared: int | None = None
    head_size: int | None = None
    scale: float | None = None
    scaled_by_layer: bool = False
    temperatures: bool = False
    score_cap: float | None = None
    attention_bias: bool = True
    output_bias: bool = True
    head_norm: str = "none"
    window: int | None = None
    sliding: tuple[bool, ...] | None = None
    rotary: tuple[Rotary, ...] = ()
    rotary_size: int | None = None
    rotary_kinds: tuple[int, ...] | None = None
    num_buckets: int = 0
    max_distance: int = 128
    alibi: bool = False
    distances: int = 0
    distance_values: bool = False
    norm: str = "layer"
    norm_bias: bool = True
    eps: float = 1e-5
    unit_offset: bool = False
    norm_place: str = "before"
    parallel: bool = False
    last_norm: bool = True
    first_unnormed: bool = False
    update_scale: bool = False
    activation: str | Callable[[Any], Any] = "gelu"
    gated: bool = False
    bias_in: bool = True
    bias_out: bool = True
    head: str = "linear"
    head_activation: str | None = None
    head_map_bias: bool = True
    tied: bool = False
    logit_cap: float | None = None
    spread: float | None = 0.02
    factor: float | None = None
    scaled_outputs: bool = False

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_layers if self.num_groups is None else self.num_groups * self.inner_layers

    @property
    def words_size(self) -> int:
        """The dimension of the word embedding."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def shared_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_heads if self.num_shared is None else self.num_shared

    @property
    def width_of_head(self) -> int:
        """k, the dimension of a head of the trained network."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def divisible(self) -> bool:
        """True if the matrices can be divided into another number of heads: heads have no separate norms or positions,
        and do not share keys."""
        plain = self.head_size is None and self.num_shared is None and self.head_norm == "none"
        return plain and not (self.rotary or self.num_buckets or self.alibi or self.distances)


def check_sizes(sizes: Any) -> NetworkSizes:
    """Returns `sizes` if they are `NetworkSizes`, which were checked when they were made."""
    return check_instance(
        sizes, "sizes", NetworkSizes, "a NetworkSizes", "pass those of a model, model.network.sizes, say"
    )


class Misfit(NamedTuple):
    """A rule that a field of sizes breaks: what it must be, what the sizes must have, and what there is instead."""

    field: str
    must: str
    have: str
    value: Any


def field_misfits(values: Mapping[str, Any], names: Mapping[str, str] = {}, kind: Any = None) -> Iterator[Misfit]:
    """The rules that single fields of a named tuple, by default `NetworkSizes`, break; `names` has the names of the
    fields in messages, where they are others."""
    for field, value in values.items():
        rule = _rule_of(field, value, NetworkSizes if kind is None else kind)
        # A network that reads images has no words.
        no_words = field == "vocab_size" and isinstance(value, int) and not value and values.get("patches") is not None
        if rule is not None and not no_words:
            yield Misfit(field, rule[0], rule[1].format(names.get(field, field)), value)


def misfits(values: Mapping[str, Any], names: Mapping[str, str] = {}) -> Iterator[Misfit]:
    """The rules that all fields together break; `names` as in `field_misfits`."""
    named = lambda field: names.get(field, field)
    divides = lambda field, number, what: Misfit(
        field, f"divide {what}, {number}", f"a {named(field)} that divides {what}, {number}", values[field]
    )
    yield from field_misfits(values, names)
    for rotary in values["rotary"]:
        if rotary.scaling in ("llama3", "yarn") and rotary.low >= rotary.high:
            below = f"below the {named('high')}, {rotary.high}"
            yield Misfit("rotary", f"have a low {below}", f"a {named('low')} {below}", rotary.low)
    d, heads, layers = values["hidden_size"], values["num_heads"], values["num_layers"]
    shared, size = values["num_shared"], values["head_size"]
    if size is None and d % heads:
        yield divides("num_heads", d, "the hidden size")
    if shared is not None and heads % shared:
        yield divides("num_shared", heads, named("num_heads"))
    turned = values["rotary_size"] if values["rotary_size"] is not None else size if size is not None else d // heads
    if values["rotary"] and turned % 2:
        field = "head_size" if values["rotary_size"] is None else "rotary_size"
        yield Misfit(field, "be even", "heads of an even size, or an even part of them that is rotated", turned)
    for field, what in (("sliding", "a layer_type"), ("rotary_kinds", "a kind of rotary positions")):
        if values[field] is not None and len(values[field]) != layers:
            have = f"{what} for each of {layers} layers"
            yield Misfit(field, f"have an entry for each of {layers} layers", have, len(values[field]))
    buckets, distance = values["num_buckets"], values["max_distance"]
    # With four buckets each direction has one for small and one for large distances. If every distance up to
    # `max_distance` had its own bucket, none would be left to share.
    if buckets and (buckets < 4 or distance <= buckets // 4):
        field = "num_buckets" if buckets < 4 else "max_distance"
        rule = "at least 4 buckets and a max_distance beyond a quarter of them"
        yield Misfit(field, f"leave {rule}", rule, (buckets, distance))


def _rule_of(field: str, value: Any, kind: Any) -> tuple[str, str] | None:
    """If the value of a field breaks a rule: what the field must be, and what sizes must have, with {} for its name."""
    annotation = kind.__annotations__[field]
    if value is None and type(None) in get_args(annotation):
        return None
    wanted = next((part for part in get_args(annotation) if part is not type(None)), annotation)
    if field in CHOICES:
        known = (isinstance(value, str) and value in CHOICES[field]) or (field == "activation" and callable(value))
        listed = ", ".join(CHOICES[field])
        return None if known else (f"be one of {listed}", f"one of {listed} as {{}}")
    if wanted is bool:
        return None if isinstance(value, bool) else ("be True or False", "a {} that is true or false")
    if wanted in (str, Patches):
        return None if isinstance(value, wanted) else (f"be a {wanted.__name__}", f"a {wanted.__name__} as {{}}")
    if wanted in (int, float):
        # In Python a bool is an int, and JSON may give 1.0 where an integer was meant; both are refused.
        number: Any = value if isinstance(value, int if wanted is int else int | float) else -1
        # NaN is not below the largest number.
        if isinstance(value, bool) or not 0 <= number < LARGEST or (number == 0 and field not in _ZERO):
            return f"be a positive {'integer' if wanted is int else 'number'}", "a positive {}"
        most = MOST_LAYERS if field == "num_layers" else MOST
        return (f"be at most {most}", f"a {{}} of at most {most}") if wanted is int and number > most else None
    entries = {"sliding": bool, "rotary_kinds": int, "rotary": Rotary}.get(field)
    if entries is not None and not (isinstance(value, tuple) and all(isinstance(entry, entries) for entry in value)):
        return f"be a tuple of {entries.__name__}", f"a {{}} that is a tuple of {entries.__name__}"
    return None


def check_weights(sizes: NetworkSizes, dtype: Any) -> None:
    """Raise a ValueError if the certain parts of a network of these sizes (tables, most maps) do not fit in memory."""
    width, blocks, d = sizes.words_size, sizes.num_blocks, sizes.hidden_size
    numbers = {"vocab_size": width * sizes.vocab_size, "type_vocab_size": width * (sizes.type_vocab_size or 0)}
    numbers["max_positions"] = width * (sizes.max_positions or 0) if sizes.positions == "learned" else 0
    numbers["intermediate_size"] = 2 * blocks * d * sizes.intermediate_size
    # Where heads have their own size, their maps may be small.
    numbers["hidden_size"] = 2 * blocks * d * d if sizes.head_size is None else 0
    name = max(numbers, key=lambda name: numbers[name])
    # int32 can index every axis, because each of them is bounded.
    num_bytes = sum(numbers.values()) * dtype.itemsize
    check_room(getattr(sizes, name), name, num_bytes, "the weights", remedy="make the network smaller")


def check_heads(sizes: NetworkSizes, heads: Any) -> int:
    """The number of heads into which the matrices are divided; None is the trained number."""
    if heads is None:
        return sizes.num_heads
    try:
        number = check_integer(heads, "heads")
    except ValueError:
        number = 0
    if number == sizes.num_heads:
        return number
    if not sizes.divisible:
        own = "rotated each by itself" if sizes.rotary else "made each for its own size, keys or biases"
        rule = f"be None for a network whose {sizes.num_heads} heads are {own}"
        raise refusal("heads", rule, f"it is {shown(heads)}", "leave it out")
    if not number or sizes.hidden_size % number:
        rule = f"divide the hidden size, {sizes.hidden_size}"
        raise refusal("heads", rule, f"it is {shown(heads)}", "pass a divisor of it") from None
    return number
