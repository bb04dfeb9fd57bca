"""What do positions, a first token and recurrence change in a small language model after equally short trainings?

Six models of about a million parameters are trained on the same texts, with the tokenizer of the package and a fifth of
the steps of `clusterjax train language-model`: four models with learned, sinusoidal, relative and rotary positions on
texts that begin anywhere, a model with learned positions and a token that begins every text, and an LSTM. The losses
are compared on the same words of texts that no model has seen, with standard errors over texts. The figure
sink-training measures whether heads become sinks of the first token in such trainings.

`TEXTS` are files of texts, such as the unlabelled reviews. Each run is kept under `--runs` and not repeated; a stopped
run continues.
"""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import HERE, header_of, options, report, say

from clusterjax import transformer
from clusterjax._training.corpus import CLS, read_texts, set_aside


SHORT: dict[str, Any] = {"steps": 800, "epoch_steps": 50, "warm_up": 100, "held_out": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "learned": {},
    "learned, begun": {"begin": True},
    "LSTM": {"architecture": "lstm", "hidden": 374},  # 374 units have as many parameters as the four layers
    "rotary": {"positions": "rotary"},
    "sinusoidal": {"positions": "sinusoidal"},
    "relative": {"positions": "relative"},
}
ORDER = ("learned", "sinusoidal", "relative", "rotary", "learned, begun", "LSTM")
TEXTS = 6000  # the number of texts, some of which are held out
LOSSES = ["model", "first token", "parameters", "steps", "held-out loss", "error", "less learned", "error of it",
          "texts"]  # fmt: skip


def folder_of(runs: Path, name: str) -> Path:
    """The folder in which a variant is trained."""
    return runs / name.replace(", ", "-").lower()


def train_all(runs: Path, paths: list[Path], short: dict[str, Any]) -> None:
    """Train the variants that are not trained yet, one after the other, on the same texts."""
    texts = runs / "texts.jsonl"
    if not texts.is_file():
        runs.mkdir(parents=True, exist_ok=True)
        every = read_texts(paths)
        some = [every[i * len(every) // TEXTS] for i in range(TEXTS)] if len(every) > TEXTS else every
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    for name, variant in VARIANTS.items():
        folder = folder_of(runs, name)
        if (folder / "model.safetensors").is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        # All variants use the tokenizer of the package.
        if not (folder / "tokenizer.json").exists():
            transformer.load_tokenizer().save(str(folder / "tokenizer.json"))
        say(f"training {name}")
        recipe = transformer.LanguageRecipe(**short | variant)
        transformer.train_language_model(folder, [texts], recipe, say=say)


def held_rows(runs: Path, short: dict[str, Any], length: int) -> np.ndarray:
    """`length` word pieces, from a random position, of each held-out text that is long enough: (texts, length)."""
    every = read_texts([runs / "texts.jsonl"])
    aside = set_aside(len(every), short["held_out"], 0)
    held = [text for text, out in zip(every, aside, strict=True) if out]
    rng, tokenizer = np.random.default_rng(0), transformer.load_tokenizer()
    rows = [one.ids for one in tokenizer.encode_batch(held, add_special_tokens=False) if len(one.ids) >= length]
    starts = [int(rng.integers(len(row) - length + 1)) for row in rows]
    return np.array([row[start : start + length] for row, start in zip(rows, starts, strict=True)], np.int32)


def begun(rows: np.ndarray) -> np.ndarray:
    """The rows with [CLS] in front and without the last word."""
    return np.concatenate([np.full((len(rows), 1), CLS, rows.dtype), rows[:, :-1]], axis=1)


def text_losses(model: Any, rows: np.ndarray, begin: bool) -> np.ndarray:
    """The mean loss in nats of words 1 to n - 2 of each row, which models of both kinds predict, (texts,)."""
    ids = begun(rows) if begin else rows[:, :-1]
    skip = int(begin)

    @eqx.filter_jit
    def of(model, ids):
        logits = jax.vmap(model)(ids)[:, skip : ids.shape[1] - 1]
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(log_probs, ids[:, skip + 1 :, None], axis=-1)[..., 0].mean(axis=1)

    return np.concatenate(
        [np.asarray(of(model, jnp.asarray(part))) for part in np.array_split(ids, len(ids) // 64 + 1)]
    )


def error_of(values: np.ndarray) -> float:
    """The standard error of a mean over texts."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def loss_rows(runs: Path, rows: np.ndarray) -> list[dict[str, Any]]:
    """The table of the losses."""
    found, first = [], None
    for name in ORDER:
        done = header_of(folder_of(runs, name))["report"]
        begin = done["recipe"]["begin"]
        losses = text_losses(transformer.load(folder_of(runs, name)), rows, begin)
        first = losses if first is None else first
        found.append({
            "model": name.removesuffix(", begun"), "first token": begin, "parameters": done["parameters"],
            "steps": done["steps"], "held-out loss": float(losses.mean()), "error": error_of(losses),
            "less learned": float((losses - first).mean()), "error of it": error_of(losses - first),
            "texts": len(losses),
        })  # fmt: skip
        say(f"{name}: {losses.mean():.3f} ± {error_of(losses):.3f} nats")
    return found


def main() -> None:
    texts = "texts", {"type": Path, "nargs": "+", "help": "files of texts to train on"}
    runs = "--runs", {"type": Path, "help": "where the runs are kept (default: out/language_variants)"}
    chosen = options(__doc__, "language_variants.json", texts, runs)
    short = SHORT | ({"steps": 20, "epoch_steps": 5, "warm_up": 5} if chosen.quick else {})
    runs = chosen.runs or HERE / "out" / ("language_variants_quick" if chosen.quick else "language_variants")
    train_all(runs, chosen.texts, short)
    rows = held_rows(runs, short, transformer.LanguageRecipe().length)
    losses, done = loss_rows(runs, rows), header_of(folder_of(runs, "learned"))["report"]
    findings = (
        f"Guessing by the word before costs {done['bigram loss']:.3f} nats, by frequency {done['unigram loss']:.3f}, "
        "on the rows that the training held out.",
        *(f"{row['model']}{', a token begins every text' if row['first token'] else ''}: {row['less learned']:+.3f} ± "
          f"{row['error of it']:.3f} nats against learned positions, paired by text." for row in losses[1:]),
        "One training each: the errors are over texts and not over trainings.",
    )  # fmt: skip
    report(losses, chosen.out, title="Positions, a first token and an LSTM, trained alike", columns=LOSSES,
           best="held-out loss", quick=chosen.quick, findings=findings)  # fmt: skip


if __name__ == "__main__":
    main()
