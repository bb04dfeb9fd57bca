"""Faults of tokenizers, of the seam between a text and what continues it, and of what two runs have in common."""

from tests.mutants.mutant import Mutant


_SEAM = ("tests/probe/test_continuation.py",)

WORDS = (
    Mutant(
        "letters-are-numbered-as-a-hash-table-has-them",
        "clusterjax/_training/corpus.py",
        "[*SPECIAL, *letters]",
        "SPECIAL",
        ("tests/training/test_corpus.py",),
    ),
    Mutant(
        "letters-stay-special-tokens",
        "clusterjax/_training/corpus.py",
        "    tokenizer.add_special_tokens(list(SPECIAL))\n",
        "    tokenizer.add_special_tokens([*SPECIAL, *letters])\n",
        ("tests/training/test_corpus.py",),
    ),
    Mutant(
        "the-history-knows-the-time",
        "clusterjax/_training/loop.py",
        '        "history": [*progress["history"], numbers],',
        '        "history": [*progress["history"], numbers | {"seconds": seconds}],',
        ("tests/training/test_training_loop.py",),
    ),
    Mutant(
        "a-text-that-goes-on-has-ended",
        "clusterjax/probe/networks/batch.py",
        "        prompts.append(row[: begin + len(bare)])",
        "        prompts.append(row)",
        _SEAM,
    ),
    Mutant(
        "a-text-that-goes-on-does-not-begin",
        "clusterjax/probe/networks/batch.py",
        "        prompts.append(row[: begin + len(bare)])",
        "        prompts.append(bare)",
        _SEAM,
    ),
    Mutant(
        "a-continuation-begins-a-text",
        "clusterjax/probe/networks/batch.py",
        "    for ends in ((text,), (*(text[-k:] for k in range(1, _LAST)), *letters)):",
        "    for ends in ((text,),):",
        _SEAM,
    ),
    Mutant(
        "an-unknown-word-swallows-what-follows",
        "clusterjax/probe/networks/batch.py",
        "            if before and before[-1] != unknown and",
        "            if before and",
        _SEAM,
    ),
    Mutant(
        "a-fact-is-answered-by-the-token-that-begins-texts",
        "clusterjax/experiments/figures/facts.py",
        '        continuation_ids(model, template.format(subject), f" {answer}") for',
        '        ids_of([f" {answer}"])[0] for',
        ("tests/experiments/test_facts.py",),
    ),
    Mutant(
        "a-word-of-several-senses-is-the-token-that-ends-texts",
        "clusterjax/experiments/figures/word_senses.py",
        'model.tokenizer(["the", f"the {word}"], add_special_tokens=False, verbose=False)',
        'model.tokenizer(["the", f"the {word}"], verbose=False)',
        ("tests/experiments/test_word_senses.py",),
    ),
)
