"""Faults of model folders, of pre-training and of the names that are imported late."""

from .mutant import Mutant


_FOLDER = ("tests/test_model_folder.py",)
_LAZY = ("tests/test_lazy.py",)

FOLDERS = (
    Mutant(
        "a-model-is-written-in-two-steps",
        "clusterjax/_model_folder.py",
        "        self.add(folder, contents | (further or {}), {*gone",
        "        self.add(folder, {CONFIG: contents[CONFIG]})\n"
        "        self.add(folder, contents | (further or {}), {*gone",
        _FOLDER,
    ),
    Mutant(
        "files-of-the-former-model-stay",
        "clusterjax/_model_folder.py",
        "{*gone, *(OF_A_MODEL & listed_files(folder))}",
        "{*gone}",
        _FOLDER,
    ),
    Mutant(
        "a-model-that-was-replaced-meanwhile-is-believed",
        "clusterjax/_model_folder.py",
        "not before[1] and state_of(folder) == before",
        "True",
        _FOLDER,
    ),
    Mutant(
        "a-draft-of-another-transaction-is-taken",
        "clusterjax/_disk.py",
        "            if _digest(draft) == digest:",
        "            if draft.is_file():",
        ("tests/test_disk.py",),
    ),
    Mutant(
        "the-model-of-another-run-is-overwritten",
        "clusterjax/_pretraining.py",
        "        _refuse_another(folder, settings)\n",
        "",
        ("tests/probe/test_train.py",),
    ),
    Mutant(
        "the-help-imports-numpy",
        "clusterjax/_cli/_types.py",
        "from pathlib import Path\n",
        "from pathlib import Path\n\nimport numpy  # noqa: F401\n",
        _LAZY,
    ),
    Mutant(
        "an-old-spelling-is-an-abbreviation",
        "clusterjax/_cli/_options.py",
        "    for old, new in renamed.items():",
        "    for old, new in [pair for pair in renamed.items() if pair[0] != 'd']:",
        ("tests/cli/test_main.py",),
    ),
)
