"""The `config.json` of a checkpoint: the configuration of transformers, and the sizes that it says.

Invariants: a configuration is refused with the name of the entry and the file before any array is made of it; no code
of a checkpoint is run; only the architectures of `ARCHITECTURES` are known.
"""

import math
from pathlib import Path
from typing import Any

from ..._disk import check
from ..._json import Within, misfit, read_json
from .architectures import ARCHITECTURES
from .library import transformers_library
from .sizes import CHOICES, FLAGS, MOST, MOST_LAYERS, NULLABLE, OTHERS, REALS


# What messages call the entries of `CHOICES`.
_WORDS = {"activation": "an activation", "scaling": "a rope_type"}
_LABELS = Within(int, 0, 10**5)


def read_config(folder: Path) -> Any:
    """The `transformers` configuration of a folder; no network, no code of the folder's own."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"path must be a folder with a config.json, but {str(folder)!r} has none; put it there.")
    fields = read_json(path, object, argument="config", remedy="fetch it again")
    config = make_config(fields, repr(str(path)))
    check(path, "config", "fetch it again")
    return config


def make_config(fields: Any, place: str) -> Any:
    """The `transformers` configuration of these fields; `place` is where they are, for messages."""
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(
            f"config must be of an architecture among {', '.join(ARCHITECTURES)}, but {place} is of {kind!r}; name "
            "another checkpoint."
        )
    wrong = misfit(fields, {"num_labels?": (None, _LABELS), "_num_labels?": (None, _LABELS)})
    if wrong is not None:  # transformers makes a name for each of them
        raise ValueError(f"config must be one of {kind}, but in {place} {wrong}; mend it.")
    # transformers alone takes seconds to import, and PyTorch with it where that is installed.
    transformers = transformers_library()
    try:
        # `from_dict` fills what the file leaves out by the defaults of transformers, which is how published files are
        # meant.
        return getattr(transformers, ARCHITECTURES[kind].config).from_dict(fields)
    except Exception as error:  # which errors its validation raises differs between versions of transformers
        raise ValueError(f"config must be one of {kind}, but {place} is refused ({error}); mend it.") from error


def sizes_of(config: Any, file: Path) -> Any:
    """The sizes of a network from its configuration, checked; `file` is where the configuration is, for messages."""
    architecture, place = ARCHITECTURES[config.model_type], repr(str(file))
    sizes = architecture.read_sizes(config, place)
    for name, value in sizes.items():
        if name in CHOICES or name in FLAGS or name in OTHERS or (value is None and name in NULLABLE):
            continue
        # bool is an int to Python, and JSON gives 1.0 where an integer was meant; both are refused.
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
