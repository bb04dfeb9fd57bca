"""Faults of model folders, of files of others, of pre-training and of the names that are imported late."""

from tests.mutants.mutant import Mutant


_LAZY = ("tests/house/test_lazy.py",)
_JSON, _CHECK = ("tests/files/test_json.py",), ("tests/base/test_check.py",)
_OTHERS = "tests/files/test_other_files.py::"
_ROOM = ("tests/base/test_room.py::test_what_does_not_fit_is_refused",)

FOLDERS = (
    Mutant(
        "a-file-is-written-in-place",
        "clusterjax/_files/disk.py",
        "    with draft_beside(path) as draft:\n        # The mode",
        "    with contextlib.nullcontext(path) as draft:\n        path.unlink(missing_ok=True)\n        # The mode",
        ("tests/files/test_disk.py",),
    ),
    Mutant(
        "a-live-draft-is-removed",
        "clusterjax/_files/disk.py",
        "        return draft not in _live\n",
        "        return True\n",
        ("tests/files/test_disk.py",),
    ),
    Mutant(
        "a-draft-of-another-machine-is-removed",
        "clusterjax/_files/disk.py",
        '    if match["host"] != _host():\n        return False\n',
        "",
        ("tests/files/test_disk.py",),
    ),
    Mutant(
        "a-folder-that-was-moved-away-is-lost",
        "clusterjax/_files/disk.py",
        "        if draft.name.endswith(OLD) and draft.is_dir()",
        "        if False and draft.is_dir()",
        ("tests/files/test_disk.py",),
    ),
    Mutant(
        "a-damaged-file-is-believed",
        "clusterjax/_files/sealed.py",
        '        if not is_sealed(data, str(header.get("sha256"))):',
        "        if False:",
        ("tests/files/test_sealed.py", "tests/files/test_model_folder.py"),
    ),
    Mutant(
        "a-changed-file-beside-a-model-is-believed",
        "clusterjax/_files/sealed.py",
        "        if digest is None or checksum(read_regular(path)) == digest:",
        "        if True:",
        ("tests/files/test_sealed.py",),
    ),
    Mutant(
        "the-model-of-another-run-is-overwritten",
        "clusterjax/_training/pretraining.py",
        "        _refuse_another(folder, settings)\n",
        "",
        ("tests/probe/test_train.py",),
    ),
    Mutant(
        "the-help-imports-numpy",
        "clusterjax/_cli.py",
        "from pathlib import Path\n",
        "from pathlib import Path\n\nimport numpy  # noqa: F401\n",
        _LAZY,
    ),
    Mutant(
        "the-beginning-of-an-option-is-the-option",
        "clusterjax/_cli.py",
        "formatter_class=_Help, allow_abbrev=False)",
        "formatter_class=_Help)",
        ("tests/cli/test_main.py",),
    ),
    Mutant(
        "a-file-of-another-program-is-replaced",
        "clusterjax/_files/sealed.py",
        "        if not ours:\n",
        "        if False:\n",
        (f"{_OTHERS}test_files_that_training_would_replace_are_refused",),
    ),
    Mutant(
        "a-device-is-replaced-by-a-file",
        "clusterjax/_files/disk.py",
        "        refuse_irregular(os.stat(path), path)",
        "        os.stat(path)",
        (f"{_OTHERS}test_what_is_no_regular_file_is_not_replaced",),
    ),
    Mutant(
        "a-sweep-removes-the-files-of-others",
        "clusterjax/sweep/_store.py",
        'glob("c*.partial")',
        'glob("*.partial")',
        (f"{_OTHERS}test_a_sweep_leaves_the_files_of_others",),
    ),
    Mutant(
        "a-figure-removes-the-files-of-others",
        "clusterjax/experiments/framework/run.py",
        "        for entry in _strangers(place):\n            if entry.is_dir()",
        "        for entry in ():\n            if entry.is_dir()",
        (f"{_OTHERS}test_a_figure_that_is_drawn_again_keeps_the_files_of_others",),
    ),
    Mutant(
        "a-file-is-read-whatever-its-size",
        "clusterjax/_files/json.py",
        "        if size > bound:\n",
        "        if False:\n",
        _JSON,
    ),
    Mutant(
        "what-does-not-fit-into-memory-is-read",
        "clusterjax/_files/json.py",
        "    if size <= _LITTLE:\n",
        "    if True:\n",
        _JSON,
    ),
    Mutant(
        "a-device-is-opened-before-it-is-refused",
        "clusterjax/_files/json.py",
        "    refuse_irregular(os.stat(path), path)\n",
        "    os.stat(path)\n",
        _JSON,
    ),
    Mutant(
        "a-plain-field-is-of-any-type",
        "clusterjax/_files/json.py",
        "    return None if type(value) is form else misfit(",
        "    return None if isinstance(form, type) else misfit(",
        _JSON,
    ),
    Mutant(
        "a-gzip-bomb-is-unpacked",
        "clusterjax/_files/tables.py",
        "        if self.read_so_far > self.most:",
        "        if False:",
        ("tests/files/test_bounds.py",),
    ),
    Mutant(
        "each-batch-of-a-sweep-has-files-of-its-own",
        "clusterjax/sweep/_store.py",
        "        return -(-len(self.points) // _MOST_CHUNKS)",
        "        return 1",
        ("tests/sweep/test_store.py::test_large_batches_are_divided_and_many_small_ones_share_a_chunk",),
    ),
    Mutant(
        "the-gallery-tells-the-time",
        "clusterjax/experiments/framework/page/page.html",
        "<p>{{ listed(record.versions) }}; {{ listed(record.machine) }}</p></details>",
        "<p>{{ listed(record.versions) }}; {{ listed(record.machine) }}; {{ record.finished }}</p></details>",
        ("tests/experiments/test_gallery.py::test_claims_numbers_and_verdicts_are_shown_as_text",),
    ),
    Mutant(
        "a-mask-of-entries-is-lost",
        "clusterjax/_base/checks.py",
        "    check_unmasked(array, name, masked)\n",
        "",
        _CHECK,
    ),
    Mutant(
        "bytes-are-taken-in-the-order-of-the-file",
        "clusterjax/_base/checks.py",
        "    return array if array.dtype.isnative else",
        "    return array if True else",
        _CHECK,
    ),
    Mutant(
        "what-overflows-is-infinite",
        "clusterjax/_base/checks.py",
        "np.isfinite(held) & ~np.isfinite(rounded)",
        "np.isfinite(held) & np.isnan(rounded)",
        _CHECK,
    ),
    Mutant(
        "an-interpolation-takes-no-memory",
        "clusterjax/_dynamics/simulate.py",
        "(9 if solver is None else 2) if dense else 0",
        "0",
        _ROOM,
    ),
    Mutant(
        "an-interpolation-keeps-no-slopes",
        "clusterjax/_dynamics/simulate.py",
        "(9 if solver is None else 2) if dense else 0",
        "2 if dense else 0",
        _ROOM,
    ),
)
