"""The families of networks that `probe.load` reads, by the `model_type` of their configuration.

Invariants: an invalid entry of `config.json` is refused by name before any array is allocated; of the classes of
transformers, which change between versions, only the configurations are used; no code of a checkpoint is run.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...._base.checks import shown
from ...._files.json import Within, misfit, read_json
from ...._files.sealed import check_beside
from ..sizes import Misfit, NetworkSizes, field_misfits, misfits
from ..tokenizer import transformers_library
from ._family import Family, refuse, unfit
from .bert import ALBERT, BERT, DISTILBERT, ELECTRA, ROBERTA
from .gpt import BLOOM, GPT2, GPT_NEOX, OPT
from .llama import GEMMA2, GEMMA3, LLAMA, MISTRAL, OLMO2, PHI3, QWEN2, QWEN3, SMOLLM3
from .modern_bert import MODERN_BERT
from .t5 import MT5, T5
from .vit import DINOV2, VIT


FAMILIES: dict[str, Family] = {
    "albert": ALBERT, "bert": BERT, "bloom": BLOOM, "dinov2": DINOV2, "distilbert": DISTILBERT, "electra": ELECTRA,
    "gemma2": GEMMA2, "gemma3_text": GEMMA3, "gpt2": GPT2, "gpt_neox": GPT_NEOX, "llama": LLAMA, "mistral": MISTRAL,
    "modernbert": MODERN_BERT, "mt5": MT5, "olmo2": OLMO2, "opt": OPT, "phi3": PHI3, "qwen2": QWEN2, "qwen3": QWEN3,
    "roberta": ROBERTA, "smollm3": SMOLLM3, "t5": T5, "vit": VIT,
}  # fmt: skip
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
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"config must be of an architecture among {', '.join(FAMILIES)}, but {place} is of {kind!r}; name another "
            "checkpoint."
        )
    wrong = misfit(fields, {"num_labels?": (None, _LABELS), "_num_labels?": (None, _LABELS)})
    if wrong is not None:  # transformers creates a name for each label
        raise ValueError(f"config must be one of {kind}, but in {place} {wrong}; mend it.")
    if fields.get("quantization_config") is not None:
        raise unfit("be of a network that is not quantised", place, "there is a quantization_config")
    # Importing transformers alone takes seconds, and imports PyTorch where that is installed.
    transformers = transformers_library()
    try:
        # `from_dict` fills missing entries with the defaults of transformers, on which published files rely.
        return getattr(transformers, FAMILIES[kind].config).from_dict(fields)
    except Exception as error:  # the errors of its validation differ between versions of transformers
        raise ValueError(f"config must be one of {kind}, but {place} is refused ({error}); mend it.") from error


def sizes_of(config: Any, file: Path) -> NetworkSizes:
    """The checked sizes of a network from its configuration; `file` names the configuration in messages."""
    family, place = FAMILIES[config.model_type], repr(str(file))
    refuse(config, place, family.refused)
    sizes = {"family": config.model_type} | family.fixed
    for field, entry in family.entries.items():
        if field in NetworkSizes._fields:
            value = sizes[field] = getattr(config, entry)
            if value is None and field not in _NULLABLE:
                raise unfit(f"have a positive {entry}", place, "it is None", "mend it")
            # The fields that `read` computes may need this one.
            problem = None if value is None else next(field_misfits({field: value}, family.entries), None)
            if problem is not None:
                raise _error(problem, place)
    sizes |= family.read(config, place)
    names = family.entries | {"low": "low_freq_factor", "high": "high_freq_factor"}
    for problem in misfits(NetworkSizes._field_defaults | sizes, names):
        raise _error(problem, place)
    return NetworkSizes(**sizes)


# Entries that may be missing: GPT-2 computes its width, and not every file has the spread of the first weights.
_NULLABLE = ("intermediate_size", "spread")


def _error(problem: Misfit, place: str) -> ValueError:
    description = repr(problem.value) if len(repr(problem.value)) <= 40 else shown(problem.value)
    return unfit(f"have {problem.have}", place, f"it is {description}", "mend it")
