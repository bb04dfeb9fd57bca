"""A tiny training, or two figures: `python -m tests.training_process KIND FOLDER TEXTS` is a process that kills itself.

The process dies by SIGKILL after the second of three checkpoints, or before the second figure is drawn. Each kind
imports only the modules that it uses, since imports take most of the time of such a process.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np


# All words have the same letters in different orders, so that many pairs of letters are equally frequent.
_RNG = np.random.default_rng(0)
_WORDS = ["".join(_RNG.permutation(list("abcdefghij"))) for _ in range(12)]
TEXTS = [" ".join(_RNG.choice(_WORDS, 12)) for _ in range(60)]
_SIZES = {"length": 12, "batch_size": 8, "steps": 25, "epoch_steps": 10, "warm_up": 2, "held_out": 0.1}


def _language_model(out, texts, say):
    from clusterjax.transformer import LanguageRecipe, train_language_model

    recipe = LanguageRecipe(words=60, d=8, heads=2, hidden=8, layers=1, **_SIZES)
    train_language_model(out, [texts], recipe, snapshots=2, say=say)


def _albert(out, texts, say):
    from clusterjax.probe import AlbertRecipe, train_albert

    recipe = AlbertRecipe(vocab_size=60, embedding_size=4, hidden_size=8, num_heads=2, intermediate_size=8,
                          num_layers=2, stages=(), **_SIZES)  # fmt: skip
    train_albert(out, [texts], recipe, snapshots=2, say=say)


def _sentiment(out, texts, say):
    from clusterjax.sentiment import Recipe, train_sentiment

    train_sentiment(out, recipe=Recipe(depth=2, length=16, epochs=3), say=say)


def _figures(out, texts, say):
    from clusterjax.experiments import Files, Settings, reproduce

    reproduce(["figure8", "hardmax-polytope"], out, Settings(starts=2, quick=True), Files(), say=say)


KINDS = {"language-model": _language_model, "albert": _albert, "sentiment": _sentiment, "figures": _figures}


def make(kind, folder, texts, say=lambda line: None):
    from clusterjax.plot._curves import leave_curves

    KINDS[kind](folder, texts, say)
    leave_curves(folder, say)


def dies(line):
    if line.startswith("epoch 2") or line.endswith("hardmax-polytope: drawing"):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3], dies)
