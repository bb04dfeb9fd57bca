"""The description of a family of networks: the sizes in its `config.json`, and the names of parameters in its files.

A new family is one file with a `Family`, and an entry in `FAMILIES`. Names are data: a parameter of `Network`, such as
`layers.3.attention.query.kernel`, is found in files under the name that the table gives its module, with the last word
of the format. Several modules with one name are stored in one tensor, side by side in the order of the table.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..sizes import CHOICES, NetworkSizes, Rotary, field_misfits


class Family(NamedTuple):
    """A family of networks.

    **Arguments:**

    - `config`: The class of `transformers` that provides defaults for entries missing from a `config.json`.
    - `entries`: A mapping from fields of `NetworkSizes` to the entries of the configuration that give them.
    - `fixed`: The fields that all networks of the family share.
    - `read`: A function of the configuration and its place in messages that returns further fields by name.
    - `names`: A mapping from modules of `Network` to their names in files.
    - `block`: The name of a block in files, in which {i} is its number.
    - `in_block`: A function of the sizes that returns the names within a block of the modules of a block.
    - `prefix`: The prefix of all tensors in a model with a head, which is removed.
    - `left_out`: A pattern of the tensors that are not part of the network: decoders and heads for tasks.
    - `copies`: The names of further copies of tied tensors, each with its original.
    - `renamed`: Suffixes of names in old files, each with its present form.
    - `in_out`: True if the linear maps of blocks are stored as (in, out), and not as (out, in).
    - `by_head`: Modules whose joined maps are stored head by head, and not one behind the other.
    - `refused`: A mapping from entries of the configuration to the values that this library represents; all other
        values are refused.
    """

    config: str
    entries: dict[str, str]
    fixed: dict[str, Any]
    names: dict[str, str]
    block: str
    in_block: Callable[[NetworkSizes], dict[str, str]]
    read: Callable[[Any, str], dict[str, Any]] = lambda config, place: {}
    prefix: str = ""
    left_out: str = r"(?!)"
    copies: dict[str, str] = {}
    renamed: tuple[tuple[str, str], ...] = ()
    in_out: bool = False
    by_head: tuple[str, ...] = ()
    refused: dict[str, tuple[Any, ...]] = {}

    def bare(self, name: str) -> str:
        """The name of a tensor without the prefix of a model with a head, in its present form."""
        name = name.removeprefix(self.prefix)
        for old, new in self.renamed:
            name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
        return name

    def name_of(self, path: tuple[str, ...], sizes: NetworkSizes) -> tuple[str, str]:
        """The name in files of the module of a parameter, and the rest of the path; the path begins in `Network`."""
        table, first = self.names, ""
        if path[0] == "layers":
            group, inner = divmod(int(path[1]), sizes.inner_layers)
            first = self.block.format(i=path[1], group=group, inner=inner) + "."
            table, path = self.in_block(sizes), path[2:]
        for length in range(len(path), 0, -1):
            module = ".".join(path[:length])
            if module in table:
                return first + table[module], ".".join(path[length:])
        raise KeyError(".".join(path))


def unfit(rule: str, place: str, problem: str, remedy: str = "name another checkpoint") -> ValueError:
    """The error for a configuration that breaks `rule`."""
    return ValueError(f"config must {rule}, but in {place} {problem}; {remedy}.")


def refuse(config: Any, place: str, refused: dict[str, tuple[Any, ...]]) -> None:
    """Raise a ValueError if an entry has a value that this library does not represent."""
    for entry, known in refused.items():
        value = getattr(config, entry, known[0])
        if not any(value is allowed or (value == allowed and type(value) is type(allowed)) for allowed in known):
            description = str(value).lower() if isinstance(value, bool) else repr(value)
            raise unfit("be of a network that is represented here", place, f"{entry} is {description}")


def tied(config: Any) -> bool:
    """True if words are scored by their embedding, also if the entry is None, as in transformers."""
    return config.tie_word_embeddings is not False


def head_size(config: Any, place: str) -> Any:
    """The dimension of a head, `head_dim` if that is given."""
    size = getattr(config, "head_dim", None)
    if size is not None:
        return size
    hidden, heads = config.hidden_size, config.num_attention_heads
    whole = isinstance(hidden, int) and isinstance(heads, int) and heads > 0
    if whole and hidden % heads:
        rule = f"have a num_attention_heads that divides the hidden size, {hidden}, or a head_dim"
        raise unfit(rule, place, f"it is {heads}", "mend it")
    # A value that is not a number is refused later, under its own name.
    return hidden // heads if whole else 2


def sliding(config: Any, place: str, known: tuple[str, ...] = ("full_attention", "sliding_attention")) -> Any:
    """True for each layer that has the window; None without such entries."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return None
    wrong = [kind for kind in kinds if kind not in known]
    if wrong:
        raise unfit(f"have layer_types among {', '.join(known)}", place, f"one is {wrong[0]!r}")
    return tuple(kind == "sliding_attention" for kind in kinds)


def rotary(config: Any, place: str, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """The rotary positions: `rotary` with one entry, or one for each kind of layer, and `rotary_size`."""
    rope: Any = getattr(config, "rope_parameters", None)
    if rope is None:  # version 4 of transformers
        scaling = getattr(config, "rope_scaling", None) or {}
        rope = {"rope_theta": getattr(config, "rope_theta", 10000.0)} | scaling
        rope |= {"partial_rotary_factor": getattr(config, "partial_rotary_factor", getattr(config, "rotary_pct", 1.0))}
        if kinds:
            local = getattr(config, "rope_local_base_freq", getattr(config, "local_rope_theta", 10000.0))
            whole = getattr(config, "global_rope_theta", rope["rope_theta"])
            rope = {"full_attention": rope | {"rope_theta": whole}, "sliding_attention": {"rope_theta": local}}
    nested = [name for name, value in rope.items() if isinstance(value, dict)]
    if nested and not set(nested) <= set(kinds):
        rule = "have rope_parameters for all layers and not for kinds of layers"
        raise unfit(rule, place, f"it has {next(name for name in nested if name not in kinds)}")
    parts = [rope[kind] for kind in kinds] if nested else [rope] * max(len(kinds), 1)
    fields: dict[str, Any] = {"rotary": tuple(_rotary(part, config, place) for part in parts)}
    first = fields["rotary"][0]
    if first.scaling == "dynamic" and isinstance(first.factor, int | float) and first.factor >= 1:
        # The base grows with the text, up to this factor.
        fields["max_positions"] = int(first.factor * first.original_positions)
    share = parts[0].get("partial_rotary_factor")
    if share in (None, 1):
        return fields
    size = head_size(config, place)
    return fields | {"rotary_size": int(size * share) if isinstance(size, int) else size}


def _rotary(rope: dict[str, Any], config: Any, place: str) -> Rotary:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in CHOICES["scaling"]:
        raise unfit(f"have a rope_type among {', '.join(CHOICES['scaling'])}", place, f"it is {kind!r}")
    fields = _given(rope, kind, config, place)
    for problem in field_misfits(fields, _ROTARY, Rotary):
        raise unfit(f"have {problem.have}", place, f"it is {problem.value!r}", "mend it")
    return Rotary(**fields)


# The names of the fields of `Rotary` in configurations.
_ROTARY = {"theta": "rope_theta", "low": "low_freq_factor", "high": "high_freq_factor", "amplitude": "attention_factor",
           "original_positions": "original_max_position_embeddings"}  # fmt: skip


def _given(rope: dict[str, Any], kind: str, config: Any, place: str) -> dict[str, Any]:
    """The fields of `Rotary` that a configuration gives."""
    fields: dict[str, Any] = {"theta": rope.get("rope_theta", 10000.0), "scaling": kind}
    if kind == "default":
        return fields
    fields["factor"], trained = rope.get("factor"), config.max_position_embeddings
    if kind == "llama3":
        fields |= {field: rope.get(_ROTARY[field]) for field in ("low", "high", "original_positions")}
    elif kind == "dynamic":
        fields["original_positions"] = trained
    elif kind == "yarn":
        fields["original_positions"] = rope.get("original_max_position_embeddings") or trained
        fields |= {"low": rope.get("beta_slow") or 1.0, "high": rope.get("beta_fast") or 32.0}
        fields |= {"truncate": rope.get("truncate", True), "amplitude": _amplitude(rope, fields, place)}
    return fields


def _amplitude(rope: dict[str, Any], given: dict[str, Any], place: str) -> Any:
    """The factor of cosines and sines of YaRN, by default 0.1 log(factor) + 1 (2309.00071, Section 3.4)."""
    amplitude, factor = rope.get("attention_factor"), given["factor"]
    if amplitude is not None:
        return amplitude
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise unfit("have a positive factor", place, f"it is {factor!r}", "mend it")
    amplitude_of = lambda scale: 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    return amplitude_of(scale) / amplitude_of(of_all) if scale and of_all else amplitude_of(1)


# The maps that many families store in one tensor, side by side in this order.
QKV = ("attention.query", "attention.key", "attention.value")
# Entries that most configurations share, by the fields of `NetworkSizes`.
COMMON = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size", "num_layers": "num_hidden_layers", "spread": "initializer_range",
    "max_positions": "max_position_embeddings",
}  # fmt: skip
