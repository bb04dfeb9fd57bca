"""The sizes that define a network, read from a `config.json` by transformers and kept without it.

`AlbertSizes` and `T5Sizes` are named tuples of plain numbers, checked when they are made: hashable, so that they can
be static under `jax.jit`, and independent of the classes of transformers, which change between its versions.

Invariants: a configuration is refused with the name of the entry and the file before any array is made of it; no code
of a checkpoint is run, and only the three architectures below are known.
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..._check import check_choice, check_flag, check_instance, check_integer, check_number, refusal, shown
from ..._disk import check
from ..._json import Within, misfit, read_json


_LABELS = Within(int, 0, 10**5)
_MOST = 2**31 - 1
ACTIVATIONS = ("gelu", "gelu_new", "relu")
_FLAGS, _REALS = ("tied", "gated"), ("eps", "spread")
_Sizes = TypeVar("_Sizes", bound=type)


def _checked(cls: _Sizes) -> _Sizes:
    """A named tuple whose numbers are checked when it is made."""
    # `__new__` and not `__init__`, which a named tuple does not have; `_replace` and `_make` come through here as well.
    make = cls.__new__

    @functools.wraps(make)
    def new(kind: Any, *args: Any, **named: Any) -> Any:
        return check_sizes(make(kind, *args, **named), kind)

    cls.__new__ = new
    return cls


def check_sizes(sizes: Any, kind: Any) -> Any:
    """`sizes`, if they are of this kind and a network can be made of them."""
    check_instance(sizes, "sizes", kind, f"a {kind.__name__}", "pass those of a model, model.network.sizes, say")
    for name, value in sizes._asdict().items():
        if name == "activation":
            check_choice(value, name, ACTIVATIONS)
        elif name in _FLAGS:
            check_flag(value, name)
        elif name in _REALS:
            check_number(value, name, above=0)
        else:
            check_integer(value, name, most=_MOST)
    if isinstance(sizes, AlbertSizes):
        check_heads(sizes.hidden_size, sizes.num_heads, "num_heads")
        return sizes
    # Four buckets are the fewest with one for small and one for large distances in each direction; distances of which
    # all have a bucket of their own would leave none to share.
    check_integer(sizes.num_buckets, "num_buckets", least=4, most=_MOST)
    check_integer(sizes.max_distance, "max_distance", least=sizes.num_buckets // 4 + 1, most=_MOST)
    return sizes


@_checked
class AlbertSizes(NamedTuple):
    """The numbers that make an ALBERT.

    **Arguments:**

    - `vocab_size`, `embedding_size`: Rows and columns of the word embedding, which is factorised: a linear map takes it
        to `hidden_size`.
    - `hidden_size`, `num_heads`, `intermediate_size`: d, the heads that divide it, the width of the feed-forward.
    - `num_layers`: How many times a group of layers is applied.
    - `num_groups`, `inner_layers`: How many groups share these times evenly, and of how many layers each group is.
    - `activation`: "gelu", "gelu_new" or "relu".
    - `max_positions`, `type_vocab_size`: Rows of the embeddings of positions and token types.
    - `eps`: Of the layer norms.
    - `tied`: Whether the masked-LM head uses the word embedding.
    - `spread`: Standard deviation of random weights.

    **Raises:**

    - `ValueError` if a number is not positive, the heads do not divide the hidden size, or the activation is another.

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


@_checked
class T5Sizes(NamedTuple):
    """The numbers that make a T5 encoder.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the embedding.
    - `num_heads`, `head_size`: The heads and the dimension of each; their product need not be `hidden_size`.
    - `intermediate_size`: The width of the feed-forward.
    - `num_layers`: The blocks of the encoder.
    - `activation`, `gated`: Of the feed-forward.
    - `num_buckets`, `max_distance`: Of the relative positions.
    - `eps`: Of the RMS norms.

    **Raises:**

    - `ValueError` if a number is not positive, there are fewer than 4 buckets, `max_distance` is not beyond a quarter
        of them, or the activation is another.

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


def read_config(folder: Path) -> Any:
    """The `transformers` configuration of a folder; no network, no code of the folder's own."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"path must be a folder with a config.json, but {str(folder)!r} has none; put it there.")
    fields = read_json(path, object, argument="config", remedy="fetch it again")
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    # transformers alone takes seconds to import, and PyTorch with it where that is installed.
    import transformers

    # mT5 has the encoder of T5 with other numbers.
    classes = {"albert": "AlbertConfig", "t5": "T5Config", "mt5": "MT5Config"}
    if not isinstance(kind, str) or kind not in classes:
        raise ValueError(
            f"config must be of an architecture among {', '.join(classes)}, but {str(path)!r} is of {kind!r}; name "
            "another checkpoint."
        )
    wrong = misfit(fields, {"num_labels?": (None, _LABELS), "_num_labels?": (None, _LABELS)})
    if wrong is not None:  # transformers makes a name for each of them
        raise ValueError(f"config must be one of {kind}, but in {str(path)!r} {wrong}; mend it.")
    check(path, "config", "fetch it again")
    try:
        # `from_dict` fills what the file leaves out by the defaults of transformers, which is how published files are
        # meant.
        return getattr(transformers, classes[kind]).from_dict(fields)
    except Exception as error:  # which errors its validation raises differs between versions of transformers
        raise ValueError(f"config must be one of {kind}, but {str(path)!r} is refused ({error}); mend it.") from error


def sizes_of(config: Any, file: Path) -> AlbertSizes | T5Sizes:
    """The sizes of a network from its configuration, checked; `file` is where the configuration is, for messages."""
    albert, place = config.model_type == "albert", repr(str(file))
    sizes = _albert(config, place) if albert else _t5(config)
    for name, value in sizes.items():
        if name == "activation" or name in _FLAGS:
            continue
        # bool is an int to Python, and JSON gives 1.0 where an integer was meant; both are refused.
        is_integer = name not in _REALS
        kind = int if is_integer else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
            raise ValueError(f"config must have a positive {name}, but in {place} it is {value!r}; mend it.")
        if is_integer and value > _MOST:
            raise ValueError(f"config must have a {name} of at most {_MOST}, but in {place} it is {value!r}; mend it.")
    if sizes["activation"] not in ACTIVATIONS:
        raise ValueError(
            f"config must have an activation among {', '.join(ACTIVATIONS)}, but in {place} it is "
            f"{sizes['activation']!r}; name another checkpoint."
        )
    if albert and sizes["hidden_size"] % sizes["num_heads"]:
        raise ValueError(
            f"config must have a num_attention_heads that divides the hidden size, {sizes['hidden_size']}, but in "
            f"{place} it is {sizes['num_heads']}; mend it."
        )
    if not albert and (sizes["num_buckets"] < 4 or sizes["max_distance"] <= sizes["num_buckets"] // 4):
        raise ValueError(
            f"config must have at least 4 buckets and a max_distance beyond a quarter of them, but in {place} it has "
            f"{sizes['num_buckets']} and {sizes['max_distance']}; mend it."
        )
    return AlbertSizes(**sizes) if albert else T5Sizes(**sizes)


def check_heads(hidden_size: int, heads: Any, name: str) -> int:
    """`heads`, if so many divide the hidden size."""
    try:
        number = check_integer(heads, name)
    except ValueError:
        number = 0
    if not number or hidden_size % number:
        rule = f"divide the hidden size, {hidden_size}"
        raise refusal(name, rule, f"it is {shown(heads)}", "pass a divisor of it") from None
    return number


def _albert(config: Any, place: str) -> dict[str, Any]:
    # Versions 4 of transformers could build ALBERT with relative positions; no published checkpoint has them.
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


def _t5(config: Any) -> dict[str, Any]:
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
    )
