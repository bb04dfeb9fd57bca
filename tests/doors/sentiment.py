"""Cases of `clusterjax.sentiment`: text, vocabulary, data, model, training, who leads."""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from clusterjax import sentiment
from tests.doors.cases import Case, case


WORDS = ("good", "bad", "film", "plot")
IDS, COUNTS = np.array([[2, 4, 0], [3, 5, 2]]), np.array([[1, 2, 0], [1, 1, 3]])
reviews = functools.cache(
    lambda: sentiment.Reviews(
        ("a good film", "a bad plot", "good plot", "bad film"),
        np.array([1, 0, 1, 0]),
        films=np.array(["a", "b", "c", "d"]),
        split=np.array(["train", "train", "test", "test"]),
        ratings=np.array([8, 2, 9, 1]),
    )
)


vocabulary = functools.cache(lambda: sentiment.Vocabulary(WORDS, (4, 3, 2, 1)))
encoded = functools.cache(lambda: sentiment.encode_reviews(reviews(), vocabulary()))
options = functools.cache(sentiment.TextOptions)
recipe = functools.cache(lambda: sentiment.Recipe(depth=1, epochs=1, batch_size=2, min_count=1))


@functools.cache
def model() -> sentiment.HardmaxClassifier:
    embedding = jnp.asarray(np.random.default_rng(0).normal(size=(len(WORDS) + 2, 1, 2)))
    return sentiment.HardmaxClassifier(embedding, jnp.ones(2), jnp.asarray(0.1), jnp.asarray(1.0), depth=1)


fitted = functools.cache(lambda: sentiment.Fitted(model(), vocabulary(), recipe(), [{"loss": 1.0}], 1))
folder = functools.cache(lambda: _kept("model"))


@functools.cache
def _kept(name: str) -> str:
    import tempfile
    from pathlib import Path

    root = Path(tempfile.mkdtemp())
    sentiment.save(fitted(), root / "model", {"accuracy": 0.5})
    rows = [f"a {('bad', 'good')[k % 2]} film of {k},{k % 2}" for k in range(40)]
    (root / "reviews.csv").write_text("\n".join(["text,label", *rows, ""]), "utf-8")
    released = {"E": np.ones((6, 2)), "w": np.ones(2), "v": 0.1, "alpha": 1.0, "depth": np.array(1)}
    arrays: Any = {key: np.asarray(value) for key, value in released.items()}
    np.savez(root / "released.npz", **arrays)
    return str(root / name)


def _text() -> dict[str, Case]:
    return {
        "TextOptions": case({"negators": ["not"], "stop_words": ["the"], "tag": " "}),
        "TextOptions.published": case(lambda: {"lemmatise": str.lower}),
        "TextOptions.from_record": case(lambda: {"record": options().record()}),
        "TextOptions.record": case({}, options),
        "TextOptions.words": case({"text": "a good film"}, options),
        "Vocabulary": case(lambda: {"words": ("x", "y"), "counts": [2, 1], "options": options()}),
        "Vocabulary.build": case(lambda: {"texts": ("good film", "good plot"), "options": options(), "min_count": 1}),
        "Vocabulary.encode": case({"text": "a good film"}, vocabulary),
        "Vocabulary.encode_many": case({"texts": ["a good film"], "length": 4}, vocabulary),
        "Vocabulary.decode": case({"ids": np.array([2, 3, 0])}, vocabulary),
    }


def _data() -> dict[str, Case]:
    every = {"ids": IDS, "counts": COUNTS, "labels": np.array([1, 0]), "lengths": np.array([2, 3])}
    made = reviews()
    return {
        "Reviews": case(
            dict(
                texts=made.texts[:2],
                labels=made.labels[:2],
                films=made.films[:2],
                split=made.split[:2],
                ratings=made.ratings[:2],
            )
        ),
        "Reviews.take": case({"rows": np.array([0, 1])}, reviews),
        "Encoded": case(every | {"rows": np.array([0, 1])}),
        "Encoded.take": case({"rows": np.array([0, 1])}, encoded),
        "Encoded.buckets": case({"most": 2}, encoded),
        "encode_reviews": case(lambda: {"reviews": reviews(), "vocabulary": vocabulary(), "length": 8}),
        "load_imdb": case(lambda: {"source": _kept("reviews.csv"), "most_bytes": 10**6}),
        "official_split": case(lambda: {"reviews": reviews(), "key": jr.key(0), "validation": 0.5}),
        "random_split": case(
            lambda: {"reviews": reviews(), "key": jr.key(0), "train": 0.5, "test": 0.5, "validation": 0.5}
        ),
        "Split.overlap": case({}, lambda: sentiment.random_split(made, 0.5, 0.5, key=jr.key(0), validation=0.5)),
        "synthetic_reviews": case(
            lambda: dict(
                key=jr.key(0),
                count=20,
                positive=["good", "fine"],
                negative=["bad"],
                num_neutral=20,
                shortest=6,
                longest=8,
                planted=3,
                per_film=2,
            )
        ),
    }


def _model() -> dict[str, Case]:
    use = {"ids": IDS, "counts": COUNTS}
    return {
        "HardmaxClassifier": case(
            lambda: dict(
                embedding=jnp.ones((6, 1, 2)),
                w=jnp.ones((1, 2)),
                v=jnp.asarray(0.1),
                alpha=jnp.asarray(1.0),
                A=jnp.eye(2)[None],
                depth=1,
            )
        ),
        "HardmaxClassifier.logits": case(use, model),
        "HardmaxClassifier.softmax_logits": case(use | {"beta": jnp.asarray(1.0)}, model),
        "HardmaxClassifier.shares": case(use, model),
        "HardmaxClassifier.path": case({"ids": IDS[1], "counts": COUNTS[1], "head": 0}, model),
        "HardmaxClassifier.layer": case({"counts": COUNTS[1]}, model),
        "predict_logits": case(lambda: {"model": model(), **use, "batch_size": 2}),
        "load_released": case(lambda: {"path": _kept("released.npz")}),
        "save": case(lambda: {"fitted": fitted(), "folder": "kept", "report": {"accuracy": 1.0}, "compact": True}),
        "load": case(lambda: {"folder": folder()}),
        "load_report": case(lambda: {"folder": folder()}),
    }


def _training() -> dict[str, Case]:
    return {
        "Recipe": case({}),
        "Recipe.of_dim": case({"dim": 2, "depth": 1}),
        "Recipe.bag_of_words": case({"epochs": 2}),
        "Recipe.record": case({}, recipe),
        "Recipe.with_": case({"dim": 3, "drop": 0.1}, recipe),
        "Fitted": case(
            lambda: dict(model=model(), vocabulary=vocabulary(), recipe=recipe(), history=[{"loss": 1.0}], best_epoch=1)
        ),
        "Fitted.logits": case({"texts": ["a good film"]}, fitted),
        "accuracy": case({"logits": np.array([1.0, -1.0]), "labels": np.array([1, 0])}),
        "fit": case(
            lambda: dict(
                training=reviews(),
                validation=reviews(),
                recipe=recipe(),
                key=jr.key(0),
                vocabulary=vocabulary(),
                options=options(),
            )
        ),
        "start": case(lambda: {"seen": encoded(), "words": 6, "recipe": recipe(), "key": jr.key(0)}),
        "train_encoded": case(
            lambda: {"model": model(), "seen": encoded(), "unseen": encoded(), "recipe": recipe(), "key": jr.key(0)}
        ),
        "train_sentiment": case(
            lambda: {"out": "trained", "imdb": _kept("reviews.csv"), "recipe": recipe(), "split": "random"}, seconds=100
        ),
        "explain": case(lambda: {"fitted": fitted(), "text": "a good film"}),
        "predict_many": case(lambda: {"fitted": fitted(), "texts": ("a good film",)}),
        "evaluate": case(lambda: {"fitted": fitted(), "reviews": reviews()}),
        "leaders_report": case(
            lambda: {"fitted": fitted(), "reviews": reviews(), "key": jr.key(0), "sample": 2, "top": 2, "horizon": 2}
        ),
    }


def _records() -> dict[str, Case]:
    """Of records only what users call with an argument; the rest is that it can be called."""
    points, words = np.zeros((2, 1, 1, 2)), ("good",)
    leading = sentiment.Leading("good", (), 0, 1.0, 0)
    explained = sentiment.Explanation(1.0, words, (1,), (leading,), np.ones(1), points, np.ones((2, 1)))
    leader = sentiment.Leader("good", 1, 1.0, 0)
    report = sentiment.LeadersReport(1, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 2, (1.0,), 0.5, 0.1, 1, (leader,), (leader,), ())
    return {
        "Explanation.record": case({}, lambda: explained),
        "Explanation.table": case({"most": 3}, lambda: explained),
        "Evaluation.record": case({}, lambda: sentiment.Evaluation(0.5, 0.1, 1.0, None, None, 4, 0)),
        "LeadersReport.record": case({}, lambda: report),
    }


CASES = {
    f"sentiment.{name}": one for name, one in {**_text(), **_data(), **_model(), **_training(), **_records()}.items()
}
