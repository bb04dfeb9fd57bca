"""A small ALBERT with a tokenizer and texts, for the tests of figures of networks, and the texts of a picture."""

import json

import matplotlib.text
import numpy as np

from clusterjax._training.corpus import train_tokenizer
from clusterjax.experiments import Settings
from tests.probe_cases import SHARED, tensors_of, write


CONFIG = SHARED | {
    "vocab_size": 70, "embedding_size": 8, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3,
    "max_position_embeddings": 32,
}  # fmt: skip
SYLLABLES = ("ba", "lo", "mi", "ne", "ru", "ta", "so", "ki", "vu", "fa")
SPECIAL = {"tokenizer_class": "PreTrainedTokenizerFast"} | {
    f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")
}


def checkpoint(folder, config=CONFIG, scale=0.5):
    """Write a folder with random weights, a tokenizer of word pieces and 20 texts of different lengths, one a line."""
    rng = np.random.default_rng(5)
    word = lambda: "".join(rng.choice(SYLLABLES, 2))
    texts = [" ".join(word() for _ in range(n)) for n in rng.integers(6, 13, 20)]
    tensors = {
        name: scale * array if "norm" not in name.lower() else array for name, array in tensors_of(config).items()
    }
    write(folder, config, tensors)
    train_tokenizer(texts, config["vocab_size"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    (folder / "texts.txt").write_text("\n".join(texts))
    return Settings(quick=True, albert=folder, texts=folder / "texts.txt")


def texts_of(figure):
    """All texts in a picture."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
