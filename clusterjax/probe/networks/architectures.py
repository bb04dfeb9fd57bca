"""The architectures that `load` supports: how the configuration and the files of each become its network.

A new architecture needs a file with its sizes and its network (`network.AbstractNetwork`), and an entry in
`ARCHITECTURES`.

Invariants: an invalid entry of `config.json` is refused by name before any array is allocated; of the classes of
transformers, which change between versions, only the configurations are used.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from flax import nnx

from ..._base.checks import check_integer
from ..._files.json import Within, misfit, read_json
from ..._files.sealed import check_beside
from .albert import Albert
from .bert import Bert
from .block import AbstractNetwork
from .gpt2 import GPT2, GPT2Sizes, gpt2_sizes
from .llama import Llama
from .sizes import (
    CHOICES,
    FLAGS,
    MOST,
    MOST_LAYERS,
    NULLABLE,
    OTHERS,
    REALS,
    AlbertSizes,
    BertSizes,
    LlamaSizes,
    T5Sizes,
    albert_sizes,
    bert_sizes,
    llama_fit,
    llama_sizes,
    t5_sizes,
)
from .t5 import T5Encoder
from .tokenizer import transformers_library


class Architecture(NamedTuple):
    """The properties of an architecture that `load` needs.

    **Arguments:**

    - `config`: The class of `transformers` that provides defaults for entries missing from a `config.json`.
    - `network`: The class of the network, whose first argument is the sizes.
    - `sizes`: The class of the sizes.
    - `read_sizes`: A function of the configuration and the path of its file, which returns the sizes by name.
    - `fit`: A function that raises a ValueError unless the sizes fit together.
    - `make`: A function `make(sizes, heads=..., depth=..., dtype=...)`, with optional parts, that builds the network.
    - `prefix`: The prefix of all tensors in a model with a head, which is removed.
    - `left_out`: A pattern of the tensors that are not part of the network: decoders and heads for tasks.
    - `parts`: The optional parts of the network: from the argument that enables a part to the prefix of its tensors.
    - `ties`: From the sizes, the names of the copies of tied weights that transformers writes, each with its original.
    - `renamed`: Suffixes of names in old files, each with its present form.
    """

    config: str
    network: type[AbstractNetwork]
    sizes: type
    read_sizes: Callable[[Any, str], dict[str, Any]]
    fit: Callable[[dict[str, Any], str], None]
    make: Callable[..., AbstractNetwork]
    prefix: str
    left_out: str
    parts: dict[str, str]
    ties: Callable[[Any], dict[str, str]]
    renamed: tuple[tuple[str, str], ...] = ()

    def bare(self, name: str) -> str:
        """The name of a tensor in the parameter tree, from its name in a file."""
        name = name.removeprefix(self.prefix)
        for old, new in self.renamed:
            name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
        return name


def heads_fit(sizes: dict[str, Any], place: str, entry: str = "num_attention_heads") -> None:
    """Raise a ValueError unless the number of heads divides the hidden size."""
    if sizes["hidden_size"] % sizes["num_heads"]:
        raise ValueError(
            f"config must have a {entry} that divides the hidden size, {sizes['hidden_size']}, but in "
            f"{place} it is {sizes['num_heads']}; mend it."
        )


def _t5_fit(sizes: dict[str, Any], place: str) -> None:
    if sizes["num_buckets"] < 4 or sizes["max_distance"] <= sizes["num_buckets"] // 4:
        raise ValueError(
            f"config must have at least 4 buckets and a max_distance beyond a quarter of them, but in {place} it has "
            f"{sizes['num_buckets']} and {sizes['max_distance']}; mend it."
        )


def _make_albert(sizes: AlbertSizes, *, heads: int | None, **options: Any) -> Albert:
    return Albert(sizes, nnx.Rngs(0), heads=heads, **options)


def _make_t5(sizes: T5Sizes, *, heads: int | None, **options: Any) -> T5Encoder:
    # T5 has parameters for each head, a column of its position bias.
    if heads is not None and check_integer(heads, "heads") != sizes.num_heads:
        raise ValueError(
            f"heads must be None for T5, whose bias of positions is learnt for each of its {sizes.num_heads} heads, "
            f"but it is {heads!r}; leave it out."
        )
    return T5Encoder(sizes, nnx.Rngs(0), **options)


def _make_llama(sizes: LlamaSizes, *, heads: int | None, **options: Any) -> Llama:
    # The rotation pairs the entries of a head, so that another division of the matrices would change the pairs.
    if heads is not None and check_integer(heads, "heads") != sizes.num_heads:
        raise ValueError(
            f"heads must be None for a network whose {sizes.num_heads} heads are rotated each by itself, but it is "
            f"{heads!r}; leave it out."
        )
    return Llama(sizes, nnx.Rngs(0), **options)


def _make_bert(sizes: BertSizes, **options: Any) -> Bert:
    return Bert(sizes, nnx.Rngs(0), **options)


def _make_gpt2(sizes: GPT2Sizes, **options: Any) -> GPT2:
    return GPT2(sizes, nnx.Rngs(0), **options)


def _masked_ties(sizes: AlbertSizes | BertSizes, head: str) -> dict[str, str]:
    word = "embeddings.word_embeddings."
    # transformers names the bias of the decoder `bias` if the decoder is tied, and `decoder.bias` otherwise.
    if not sizes.tied:
        return {f"{head}bias": f"{head}decoder.bias"}
    ties = {f"{head}decoder.weight": f"{word}weight", f"{head}decoder.kernel": f"{word}embedding"}
    return ties | {f"{head}decoder.bias": f"{head}bias"}


def _gpt2_ties(sizes: GPT2Sizes) -> dict[str, str]:
    return {"lm_head.weight": "wte.weight"} if sizes.tied else {}


_ALBERT = Architecture(
    config="AlbertConfig",
    network=Albert,
    sizes=AlbertSizes,
    read_sizes=albert_sizes,
    fit=heads_fit,
    make=_make_albert,
    prefix="albert.",
    # `position_ids` and `token_type_ids` are buffers of early versions of transformers.
    left_out=r"(sop_classifier|classifier|qa_outputs)\.|embeddings\.(position_ids|token_type_ids)$",
    parts={"pooler": "pooler", "head": "predictions"},
    ties=functools.partial(_masked_ties, head="predictions."),
)
_T5 = Architecture(
    config="T5Config",
    network=T5Encoder,
    sizes=T5Sizes,
    read_sizes=t5_sizes,
    fit=_t5_fit,
    make=_make_t5,
    prefix="transformer.",
    left_out=r"(decoder|lm_head|classifier|classification_head|qa_outputs)\.",
    parts={},
    ties=lambda sizes: {"encoder.embed_tokens.weight": "shared.weight"},
)
_LLAMA = Architecture(
    config="LlamaConfig",
    network=Llama,
    sizes=LlamaSizes,
    read_sizes=llama_sizes,
    fit=llama_fit,
    make=_make_llama,
    prefix="model.",
    # Early versions of transformers stored the rotation frequencies with each layer.
    left_out=r"(score|classifier|qa_outputs)\.|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",
    parts={"head": "lm_head"},
    ties=lambda sizes: {"lm_head.weight": "embed_tokens.weight"} if sizes.tied else {},
)

# The keys below are the `model_type` of a configuration. mT5 has the encoder of T5 with other sizes; Mistral is a Llama
# with a sliding window, and Qwen2 a Llama with biases.


_BERT = Architecture(
    config="BertConfig",
    network=Bert,
    sizes=BertSizes,
    read_sizes=bert_sizes,
    fit=heads_fit,
    make=_make_bert,
    prefix="bert.",
    left_out=r"(cls\.seq_relationship|classifier|qa_outputs)\.|embeddings\.(position_ids|token_type_ids)$",
    parts={"pooler": "pooler", "head": "cls.predictions"},
    ties=functools.partial(_masked_ties, head="cls.predictions."),
    # TensorFlow's names, which the first files have.
    renamed=((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")),
)
_GPT2 = Architecture(
    config="GPT2Config",
    network=GPT2,
    sizes=GPT2Sizes,
    read_sizes=gpt2_sizes,
    fit=functools.partial(heads_fit, entry="n_head"),
    make=_make_gpt2,
    prefix="transformer.",
    # Early versions of transformers stored the causal mask, and the value that replaced masked scores.
    left_out=r"h\.\d+\.attn\.(bias|masked_bias)$|(score|classifier|multiple_choice_head|qa_outputs)\.",
    parts={"head": "lm_head"},
    ties=_gpt2_ties,
)

# The keys are the `model_type` of a configuration. mT5 has the encoder of T5 with other sizes.
ARCHITECTURES: dict[str, Architecture] = {
    "albert": _ALBERT,
    "t5": _T5,
    "mt5": _T5._replace(config="MT5Config"),
    "llama": _LLAMA,
    "mistral": _LLAMA._replace(config="MistralConfig"),
    "qwen2": _LLAMA._replace(config="Qwen2Config"),
    "bert": _BERT,
    "gpt2": _GPT2,
}


def architecture_of(sizes: Any) -> Architecture:
    """The architecture to which these sizes belong."""
    return next(architecture for architecture in ARCHITECTURES.values() if architecture.sizes is type(sizes))


# The `config.json` of a checkpoint: the configuration of transformers, and the sizes that it defines.
#
# Invariants: a configuration is refused with the names of entry and file before any array is allocated; no code of a
# checkpoint is run; only the architectures of `ARCHITECTURES` are supported.


# The terms that messages use for the entries of `CHOICES`.
_WORDS = {"activation": "an activation", "scaling": "a rope_type"}
_LABELS = Within(int, 0, 10**5)


def read_config(folder: Path, complete: bool = False) -> Any:
    """The `transformers` configuration of a folder; neither a network nor code of the folder is run.

    If the file is `complete`, as that of the package is, its entries alone are the configuration, without transformers.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"path must be a folder with a config.json, but {str(folder)!r} has none; put it there.")
    fields = read_json(path, object, argument="config", remedy="fetch it again")
    config = SimpleNamespace(**fields) if complete else make_config(fields, repr(str(path)))
    check_beside(path, "config", "fetch it again")
    return config


def make_config(fields: Any, place: str) -> Any:
    """The `transformers` configuration of the given fields; `place` names their source in messages."""
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(
            f"config must be of an architecture among {', '.join(ARCHITECTURES)}, but {place} is of {kind!r}; name "
            "another checkpoint."
        )
    wrong = misfit(fields, {"num_labels?": (None, _LABELS), "_num_labels?": (None, _LABELS)})
    if wrong is not None:  # transformers creates a name for each label
        raise ValueError(f"config must be one of {kind}, but in {place} {wrong}; mend it.")
    # Importing transformers alone takes seconds, and imports PyTorch where that is installed.
    transformers = transformers_library()
    try:
        # `from_dict` fills missing entries with the defaults of transformers, on which published files rely.
        return getattr(transformers, ARCHITECTURES[kind].config).from_dict(fields)
    except Exception as error:  # the errors of its validation differ between versions of transformers
        raise ValueError(f"config must be one of {kind}, but {place} is refused ({error}); mend it.") from error


def sizes_of(config: Any, file: Path) -> Any:
    """The checked sizes of a network from its configuration; `file` names the configuration in messages."""
    architecture, place = ARCHITECTURES[config.model_type], repr(str(file))
    sizes = architecture.read_sizes(config, place)
    for name, value in sizes.items():
        if name in CHOICES or name in FLAGS or name in OTHERS or (value is None and name in NULLABLE):
            continue
        # In Python a bool is an int, and JSON may give 1.0 where an integer was meant; both are refused.
        is_integer = name not in REALS
        kind = int if is_integer else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
            raise ValueError(f"config must have a positive {name}, but in {place} it is {value!r}; mend it.")
        most = MOST_LAYERS if name == "num_layers" else MOST
        if is_integer and value > most:
            raise ValueError(f"config must have a {name} of at most {most}, but in {place} it is {value!r}; mend it.")
    for name in CHOICES.keys() & sizes.keys():
        if sizes[name] not in CHOICES[name]:
            raise ValueError(
                f"config must have {_WORDS[name]} among {', '.join(CHOICES[name])}, but in {place} it is "
                f"{sizes[name]!r}; name another checkpoint."
            )
    architecture.fit(sizes, place)
    return architecture.sizes(**sizes)
