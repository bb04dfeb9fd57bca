"""The `config.json` of a checkpoint: the configuration of transformers, and the sizes that it defines.

Invariants: a configuration is refused with the names of entry and file before any array is allocated; no code of a
checkpoint is run; only the architectures of `ARCHITECTURES` are supported.
"""

import math
from pathlib import Path
from typing import Any

from ..._disk import check
from ..._json import Within, misfit, read_json
from .architectures import ARCHITECTURES
from .library import transformers_library
from .sizes import CHOICES, FLAGS, MOST, MOST_LAYERS, NULLABLE, OTHERS, REALS


# The terms that messages use for the entries of `CHOICES`.
_WORDS = {"activation": "an activation", "scaling": "a rope_type"}
_LABELS = Within(int, 0, 10**5)


def read_config(folder: Path) -> Any:
    """The `transformers` configuration of a folder; neither a network nor code of the folder is run."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"path must be a folder with a config.json, but {str(folder)!r} has none; put it there.")
    fields = read_json(path, object, argument="config", remedy="fetch it again")
    config = make_config(fields, repr(str(path)))
    check(path, "config", "fetch it again")
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
