"""Good values of the arguments of each door, for a small valid call, by the name of the argument.

Each module has one dictionary. A key is the name of an argument, "x"; of an argument of one door, "MeanField.sample.n";
of several arguments of one door, "simulate.*"; or of the object whose methods are called, "Trajectory.self", unless its
class makes this object of its own good values. If the dictionary of a module lacks an argument that is required or None
by default, its value is taken, by name, from the dictionary of `clusterjax` itself.
"""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from flax import nnx
from matplotlib.figure import Figure

import clusterjax as cjx
from clusterjax import design, experiments, hardmax, phase, plot, probe, sentiment, sweep, transformer
from clusterjax.design._parameters import pick_parameters
from clusterjax.experiments.shared import sources
from clusterjax.probe.measures.survey import average_of
from clusterjax.probe.networks.bundled import BUNDLED
from tests.causal_cases import causal_model
from tests.helpers import normal, sphere_tokens
from tests.probe_cases import sizes_like


N, D, HEADS = 5, 4, 2
X, EYE, KEY, T, TS = sphere_tokens(0, N, D), jnp.eye(D), jr.key(0), jnp.asarray(0.5), jnp.asarray([0.0, 1.0])
FLAT = np.asarray(sphere_tokens(1, D, 2))
FOLDER = Path(tempfile.mkdtemp())


def same(value: Any, *names: str) -> dict[str, Any]:
    """One good value for several arguments."""
    return dict.fromkeys(names, value)


def _core() -> dict[str, Any]:
    softmax, unnormalised = cjx.SoftmaxAttention(1.0), cjx.UnnormalisedAttention(1.0)
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=EYE))
    rescaled = cjx.RescaledField(softmax)
    lives = cjx.lifetimes(np.arange(4.0), np.array([3, 2, 2, 1]))
    run = cjx.simulate(field, X, TS, dense=True, max_steps=64)
    causal = cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask(), position=cjx.Decay(1.0))
    causal_laws = cjx.CausalMeanField(causal, degree=8, places=4)
    laws = jnp.zeros((4, 18)).at[:, 0].set(1.0).at[:, 2].set(0.1)
    run.save(FOLDER / "run")
    neurons = {"w_in": jnp.ones((3, D)), "w_out": jnp.ones((D, 3))}
    return {
        **same(X, "x", "y", "v", "z", "x0", "z0", "values", "velocity"),
        **same(T, "t", "k", "beta", "offset", "alpha", "radius", "cosine", "separation", "speed", "factor", "step"),
        **same(T, "temperature", "gamma", "slope", "rate", "size"),
        "RandomHeads.noise": cjx.CommonNoise(softmax, 0.1),
        "enable_compilation_cache.folder": FOLDER / "cache",
        **same(EYE, "query_key", "query", "value", "A", "matrix", "query_key_form.key"),
        **same(EYE[None], "MultiHeadField.query_key", "MultiHeadField.value", "MultiHeadField.factored.query"),
        **same(EYE[None], "MultiHeadField.factored.key", "MultiHeadField.factored.value", "output"),
        **same(2, "depth", "SinkMask.width", "WindowMask.width", "max_degree", "block_rows", "block_columns"),
        **same(0.1, "tolerance", "time"), "states": np.array([3, 2, 2, 1]),
        **same(np.arange(4.0), "lifetimes.ts", "plateaus.ts", "plateaus.values"),
        **same(jnp.asarray([1.0, 2.0]), "Interpolated.values", "PiecewiseConstant.values"),
        **same(lambda t, x, args: x, "FunctionField.fn", "TokensAnd.fn"), **neurons, "n": N, "d": D, "key": KEY,
        "ts": TS, "masses": jnp.full(N, 0.2), "attention": softmax, "field": field,
        "fields": (field, cjx.PerceptronField(**neurons)), "layer": cjx.ResidualLayer(field), "bias_in": jnp.ones(3),
        "bias_out": jnp.ones(D), "mask": cjx.FullMask(), "function": lambda s: 1 + s * s,
        "allowed": lambda i, j: j <= i, "permitted": np.ones((N, N), bool), "kept": 1, "inner": cjx.Dense(),
        "position": cjx.ALiBi(0.5), "table": np.zeros(3), "clip": 1, "frequencies": np.array([0.5, 0.1]),
        "RelativeBias.from_function.function": lambda k: -(k * k).astype(float),
        "axis": "tokens", "parts": (T, T), "Combined.fn": jnp.add, "FunctionSchedule.fn": jnp.sin,
        "FunctionSchedule.name": "fn", "ResidualLayer.normalise_to": cjx.Sphere(), "Retract.solver": dfx.Euler(),
        "simulate.*": {
            "solver": dfx.Heun(), "dt0": T, "stepsize_controller": dfx.PIDController(rtol=1e-3, atol=1e-3),
            "max_steps": 1024, "adjoint": dfx.RecursiveCheckpointAdjoint(), "throw": False,
        },
        "time_to_cluster.*": {
            "solver": dfx.Heun(), "dt0": T, "stepsize_controller": dfx.PIDController(rtol=1e-3, atol=1e-3),
            "max_steps": 1024, "adjoint": dfx.RecursiveCheckpointAdjoint(), "throw": False,
        },
        "until": 1.0, "times": np.array([1.0, 2.0]), "reached": np.array([True, False]),
        "t_end": 10.0, "MergeTree.self": cjx.coarsen(field, X, 10.0, tolerance=0.1), "Trajectory.self": run,
        "Trajectory.save.path": "run", "Trajectory.load.path": str(FOLDER / "run"),
        "Harmonic.certified.queries": sphere_tokens(1, N, 2), "tokens": sphere_tokens(2, N, 2),
        # The mean field is on the circle.
        **same(sphere_tokens(1, N, 2), "points", "MeanField.to_coefficients.x"),
        **same(jnp.zeros((9, 2)).at[0, 0].set(1.0).at[1, 0].set(0.1), "c", "MeanField.__call__.x"),
        **same(cjx.SoftmaxAttention, "MultiHeadField.attention", "MultiHeadField.factored.attention"),
        "MeanField.*": {"value": jnp.eye(2), "d": 2},
        "MeanField.self": cjx.MeanField(unnormalised, d=2, degree=8, temperature=0.1), "degree": 8,
        "density": lambda x: 2 + x[:, 0],
        "CausalMeanField.self": causal_laws, "CausalMeanField.from_density.density": lambda x, s: 2 + s * x[:, 0],
        "CausalMeanField.*": {"attention": causal, "value": jnp.eye(2), "places": 4},
        **same(laws, *(f"CausalMeanField.{name}.c" for name in ("law", "density", "mean_tokens", "tail"))),
        **same(0.5, "CausalMeanField.law.s", "CausalMeanField.density.s"),
        "CausalMeanField.__call__.x": laws, "CausalMeanField.mean_tokens.s": jnp.array([0.0, 1.0]),
        # Observables.
        "bins": 4, "log_partition": jnp.ones(N),
        "neural_collapse.*": {"labels": np.arange(N) % 2, "weights": np.ones((2, D)), "bias": np.zeros(2)},
        "neural_collapse.features": X,
        "perceptron_energy.*": {"features": jnp.ones((4, D)), "amplitudes": jnp.ones(4), "primitive": jnp.cos},
        "sink_mass.weights": jnp.full((N, N), 1 / N), "share": np.array([0.5]), "Survival.quantile.share": 0.5,
        "state": 2, "Lifetimes.self": lives, "Survival.self": lives.survival(), "horizon": 0.5, "min_dwell": 1.0,
        "left": np.ones((D, 2)), "right": np.ones((2, D)), "wasserstein.masses": None, "limit_shape.field": rescaled,
        "LimitShape.self": cjx.limit_shape(X, rescaled), "reach": 1.0,
        "modes.k": 3, "kreiss_constant.matrix": -EYE, "Modes.self": cjx.modes(field, X, N * (D - 1)), "rate": 100.0,
    }  # fmt: skip


def _hardmax() -> dict[str, Any]:
    return {"layer": hardmax.HardmaxLayer(1.0, EYE), "depth": 3, "wanted": [0], "starts": 1}


def _design() -> dict[str, Any]:
    field, start, ts = cjx.AttentionField(cjx.SoftmaxAttention(1.0)), sphere_tokens(0, 3, 2), jnp.asarray([0, 0.5, 1])
    which, one = (lambda field: field.attention.beta), np.ones((1, 1))
    coarse = {"solver": dfx.Heun(), "dt0": 0.5, "stepsize_controller": dfx.ConstantStepSize()}
    observed = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), start, ts, **coarse).xs
    return {
        **same(start, "x0", "targets"), **same(1, "pieces", "attempts"), **same(2, "most", "clusters"),
        "field": field, "which": which, "observed": observed, "ts": ts, "recover.x0": None,
        "Recovery.self": design.Recovery(
            field, ("beta",), (np.ones(()),), 0.0, 1.0, one, one, one, np.ones(1), np.zeros((0, 1)), (), 18, 1, True,
            "It converged.", 1, np.ones(1), pick_parameters(field, which),
        ),
        "function": lambda beta: beta**2, "until": 1.0, "sensitivity.until": 5.0, "radius": 0.3, "norm": 0.1,
    }  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """A parameter class with one number."""

    n: int = experiments.parameter(2, "a number")


def _never() -> None:
    raise AssertionError("it is not drawn")


def _experiments() -> dict[str, Any]:
    source = sources.peat("Section 1", size={"d": 2})
    claim = experiments.Claim(
        says="It holds.", measured="1", criterion="above 0", holds=True, kind="paper", value=1.0, source=source
    )
    return {
        "starts": 2, "kind": Parameters, "default": 1.0, "says": "it", "full": 2.0, "Cost.quick": 1.0,
        "formats": ("png",), "names": ["figure3"], "out": tempfile.mkdtemp(), "claim": claim,
        "settings": experiments.Settings(starts=2, quick=True), "files": experiments.Files(("png",), film=False),
        "say": lambda line: None,
        "Outcome.self": experiments.Outcome("A.", (claim,), {}, {}, _never, None, on=sources.particles(d=2)),
    }  # fmt: skip


def _phase() -> dict[str, Any]:
    points, attention = np.ones((2, 3, 2)), cjx.UnnormalisedAttention(1.0)
    return {
        **same(2, "d", "samples", "chunk"), **same(0.5, "cosine", "threshold", "dt"), "attention": attention,
        "order_parameters": [0.1, 0.2, 0.3], "degree": 16,
        "Branch.self": phase.branch(attention, 2, order_parameters=[0.1, 0.2, 0.3], degree=16), "index": 0,
        "field": cjx.MeanField(attention, d=2, degree=8, temperature=0.9),
        "guess": jnp.zeros((9, 2)).at[0, 0].set(1.0), "betas": np.array([1.0]),
        "times": np.array([0.0, 1.0]), "n": 3, "progress": False, "PhaseDiagram.starts": phase.Uniform(2, 3, 2),
        "beta": jnp.asarray(1.0), "PhaseDiagram.cost.beta": 1.0, "x0": points, "seed": 0,
        **same(jnp.float32, "Given.tokens.dtype", "Uniform.tokens.dtype"), "x": np.ones((2, 3, 4)),
        "drawn": phase.Once(), "eigenvalues": np.array([1.0, 0.5]), "scale": T,
    }  # fmt: skip


def _plot() -> dict[str, Any]:
    square, names, ts = np.eye(4), ["a", "b", "c", "d"], np.arange(3.0)
    coords = {"beta": [1.0, 2.0], "t": [0.0, 1.0, 2.0]}
    pairs = np.array([[1, 2], [0, 1]])
    run = plot.WordRun(np.zeros((2, 2, 2)) + np.arange(2)[:, None], ("good", "bad"), np.array([0, -1]))
    return {
        **same(FLAT, "x", "avoid"), **same(np.concatenate([FLAT, np.zeros((4, 1))], axis=1), "sphere.x", "project.x"),
        **same(square, "matrix", "table", "grid"), **same(names, "names", "words", "tokens", "xnames"),
        **same(ts, "ts", "mean", "error"), **same(1.0 + np.arange(4), "x_values", "y_values"),
        **same(1, "token", "k", "hold", "move"), **same(Figure().add_subplot(), "circle.ax", "fig"),
        **same(((-2.0, 2.0), (-2.0, 2.0)), "words.limits", "animate_words.limits"), "cloud.x": 2 * FLAT,
        "cloud.limit": [FLAT], "trajectory": np.stack([FLAT, FLAT, FLAT]), "weights": np.full((3, 4, 4), 0.25),
        "times": np.array([0.0, 2.0]), "frames": 2, "corners": FLAT[:3],
        "tree": SimpleNamespace(times=np.array([1.0, 1e9]), pairs=pairs, num_tokens=3, t_end=1e12),
        "histograms.values": np.array([[0.1, 0.2, 0.3, 0.1], [0.3, 0.4, 0.2, 0.9]]), "bins": 4,
        "dataset": xr.Dataset({"close_pairs": (("beta", "t"), np.full((2, 3), 0.5))}, coords, {"n": 4}), "n": 4,
        "eigenvalues": np.array([1.0, 2.0]), "vectors": np.eye(3), "queries": np.ones((1, 2, 3)), "beta": np.ones(1),
        "line": (np.array([1.0, 0.0]), 0.5),
        "causal_trace.trace": SimpleNamespace(restored=np.zeros((3, len(names))), clean=-1.0, corrupted=-2.0),
        "place.heads": SimpleNamespace(**same(average_of(np.ones((2, 1, 2))), "beta", "eigenvalue", "rotation")),
        "WordRun.*": {"xs": np.zeros((2, 2, 2)), "names": ["good", "bad"], "first": np.array([0, -1])},
        "WordRun.self": run, "runs": [run], "animate_words.path": "run.gif", "logits": np.ones((2, 4, 4)),
        "memory": SimpleNamespace(
            activation=np.ones((2, 2)), text=0 * pairs, position=pairs, promoted=pairs, promotion=np.ones((2, 2))
        ),
        "neurons": np.array([0, 1]), "texts": np.array([[0, 1, 2]]), "present": np.ones((1, 3), bool),
        "moved": np.ones((1, 1, 4, 4)), "written": np.ones((1, 4)), "save.path": "kept", "save.formats": ["svg"],
        "save.dpi": 20, "style.*": {"font_size": 10.0},
    }  # fmt: skip


def _probe() -> dict[str, Any]:
    ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
    # The network has as many words as the tokenizer of the package.
    sizes = sizes_like(
        "albert", vocab_size=4096, embedding_size=D, hidden_size=D, num_heads=2, intermediate_size=D, num_layers=1,
        max_positions=8,
    )  # fmt: skip
    albert = probe.Network(sizes, nnx.Rngs(0), pooler=True, head=True)
    model = probe.Model(albert, SimpleNamespace(pad_token_id=0), "tiny", BUNDLED)
    texts = probe.Encoded(ids, mask)
    letters = same(causal_model(), *(f"{name}.model" for name in ("token_losses", "next_words", "generate")))
    curve, other = (average_of(np.array([[0.1, 0.2], [a, b]])) for a, b in ((0.2, 0.4), (0.1, 0.3)))
    by_place = {"self": average_of(np.array([[[0.1, 0.2]], [[0.2, 0.4]]]))}
    nothing = probe.Comparison(np.zeros(2), np.ones(2), np.zeros(2), 1.0)
    cosines, others = SimpleNamespace(cosine=curve), SimpleNamespace(cosine=other)
    correlation = np.full((1, 2, 2), 0.5) + 0.5 * np.eye(2)
    return {
        "from_arrays.*": {
            "hidden": np.asarray(normal(3, 2, 2, 4, D)), "attention": np.full((2, 1, 2, 4, 4), 0.25), "causal": False,
            "mask": np.ones((2, 4), bool), "token_ids": ids, "name": "arrays",
            "weights": {name: np.ones((1, 2, D, D)) for name in ("query", "key", "value", "output")},
        },
        "edits": probe.Edit("stream", 0.0, 0), "place": "stream", "checkpoints": [model, model],
        "causal_trace.*": {
            "model": causal_model(), "text": probe.Encoded(np.array([[2, 3, 4]]), np.ones((1, 3), bool)), "answer": 3,
            "tokens": [0], "spread": 1.0, "draws": 1,
        },
        "logit_lens.words": [1, 2], "key_value_memory.*": {"token_ids": ids, "mask": mask, "words": 2, "top": 2},
        "Network.sizes": sizes, "NetworkSizes.*": sizes._asdict(), "Network.self": albert, **letters,
        "Rotary.*": probe.Rotary()._asdict(), "Patches.*": {"image_size": 8, "patch_size": 4},
        "config": {"model_type": "gpt2", "vocab_size": 8, "n_embd": D, "n_head": 2, "n_layer": 1, "n_positions": 8},
        **same(1, "depth", "clusters", "fit_steps", "steps_per_layer"),
        **same(2, "Network.heads", "replicates", "top", "deeper.times"),
        "dtype": "float32", "token_types": 0 * ids, **same(texts, "texts", "fit_on"),
        "fixed": (2, 3), "paths": [BUNDLED / "texts.txt"],
        **same(np.array([0, 0, 1]), "first", "second"), **same(0, "layer", "value_directions.head", "seed"),
        "rngs": nnx.Rngs(0),
        "token_ids": ids, "mask": mask, "position_ids": np.tile(np.arange(4), (2, 1)),
        "hidden": jnp.ones((1, 2, D)), "similarity_of_hidden.hidden": np.asarray(normal(0, 2, 2, 4, D)),
        "load.heads": 8, "from_config.heads": 2, "network": albert, "model": model, "Model.self": model,
        "from_language_model.model": transformer.LanguageModel.random(KEY, 5, D, 2, 6, 1), "name": "fitted",
        "radius": 1.0, "part": "attention", "without.*": {"head": [0], "token": 1},
        "with_mask.mask": cjx.SinkMask(2, 1), "initial": lambda key: albert, "encode.texts": ["a b", "c"],
        "text": "cd", "token_activation.text": "a b",
        "continuation_log_prob.*": {"model": causal_model(), "continuation": "e"}, "length": 4,
        "measure": probe.Measure(lambda hidden, mask: {"sum": jnp.sum(hidden, axis=(1, 2))}),
        "Measure.*": {"level": lambda hidden, mask: {}, "layer": lambda hidden, attention, mask: {}},
        **same(("sum",), "keep", "resample"),
        "survey.*": {"replicates": np.ones((2, 2), np.int32), "settings": {"a": 1}}, "bootstrap_counts.texts": 3,
        "separators": {"[SEP]": (3,)}, "special": {"[CLS]": 2},
        "controls.*": {"measure": lambda model, texts, store=None: cosines, "draws": 1}, "statistic": "cosine",
        "target": "self", "case": "attractive",
        "Bridge.self": probe.Bridge(curve, {"fitted": curve}, 1.0, 1.0, np.zeros(0), 1.0),
        "FirstToken.self": probe.FirstToken(*[average_of(np.array([[19.0, 20.0], [21.0, 20.5]]))] * 5),
        "PositionHeads.self": probe.PositionHeads(by_place, by_place, by_place), "Comparison.self": nothing,
        "Controls.self": probe.Controls(cosines, others, (others, cosines), nothing, nothing, -1, 2.0),
        "HeadCorrelations.self": probe.HeadCorrelations(average_of(np.stack([correlation] * 2)), correlation[None], 1),
        "HeadClusters.self": probe.head_clusters(correlation, correlation[None], 1),
        "HeadSigns.self": probe.head_signs(model), "correlation": correlation, "resampled": correlation[None],
        "particle_field.n": 3, "vectors": np.ones((1, D)),
        "generate.*": {"texts": ["cd", "e"], "num_tokens": 2, "temperature": 1.0, "top_k": 3},
        "AlbertRecipe.*": {"length": 64, "stages": ((1, 16, 0.4),)}, "epoch": 1, "out": "run",
        "recipe": probe.AlbertRecipe(
            200, 4, 4, 1, 4, 1, length=8, batch_size=2, steps=1, epoch_steps=1, stages=(), held_out=0.5
        ),
        "snapshots": 1, "say": lambda line: None,
    }  # fmt: skip


def _sentiment() -> dict[str, Any]:
    words = ("good", "bad", "film", "plot")
    reviews = sentiment.Reviews(
        ("a good film", "a bad plot", "good plot", "bad film"),
        np.array([1, 0, 1, 0]),
        films=np.array(["a", "b", "c", "d"]),
        split=np.array(["train", "train", "test", "test"]),
        ratings=np.array([8, 2, 9, 1]),
    )
    vocabulary = sentiment.Vocabulary(words, (4, 3, 2, 1))
    encoded = sentiment.encode_reviews(reviews, vocabulary)
    recipe = sentiment.Recipe(depth=1, epochs=1, batch_size=2, min_count=1)
    parts = {"embedding": normal(0, 6, 1, 2), "w": jnp.ones((1, 2)), "v": jnp.asarray(0.1), "alpha": jnp.asarray(1.0)}
    model = sentiment.HardmaxClassifier(**parts, depth=1)
    fitted = sentiment.Fitted(model, vocabulary, recipe, [{"loss": 1.0}], 1)
    sentiment.save(fitted, FOLDER / "model", {"accuracy": 0.5})
    table = [f"a {('bad', 'good')[k % 2]} film of {k},{k % 2}" for k in range(40)]
    (FOLDER / "reviews.csv").write_text("\n".join(["text,label", *table, ""]), "utf-8")
    (FOLDER / "test.csv").write_text("\n".join(["text,label", *table[:4], ""]), "utf-8")
    table_of_reviews = sentiment.load_reviews(FOLDER / "reviews.csv")
    released: dict[str, Any] = {"E": np.ones((6, 2)), "w": np.ones(2), "v": 0.1, "alpha": 1.0, "depth": 1}
    np.savez(FOLDER / "released.npz", **{name: np.asarray(value) for name, value in released.items()})
    leading = sentiment.Leading("good", (), 0, 1.0, 0)
    leader = sentiment.Leader("good", 1, 1.0, 0)
    return {
        **same(reviews, "reviews", "training", "fit.validation"), **same(encoded, "seen", "unseen"),
        "rows": np.array([0, 1]), **same(0.5, "train", "test", "validation"),
        "load_reviews.test": str(FOLDER / "test.csv"), "stratified_split.reviews": table_of_reviews,
        **same(str(FOLDER / "model"), "folder"), **same(str(FOLDER / "reviews.csv"), "imdb", "source"),
        **same(1, "depth", "min_count", "best_epoch"),
        **same(np.array([1, 2, 0]), "HardmaxClassifier.path.counts", "HardmaxClassifier.layer.counts"),
        "ids": np.array([[2, 4, 0], [3, 5, 2]]), "counts": np.array([[1, 2, 0], [1, 1, 3]]),
        "labels": np.array([1, 0]), "lengths": np.array([2, 3]),
        "TextOptions.*": {"negators": ["not"], "stop_words": ["the"], "tag": " "},
        "TextOptions.published.lemmatise": str.lower, "record": sentiment.TextOptions().record(),
        "text": "a good film", "texts": ("a good film", "a bad plot"), "options": sentiment.TextOptions(),
        "Vocabulary.*": {"words": words, "counts": [4, 3, 2, 1]}, "HardmaxClassifier.path.ids": np.array([3, 5, 2]),
        "Vocabulary.decode.ids": np.array([2, 3, 0]),
        "Reviews.*": {"films": reviews.films[:2], "split": reviews.split[:2], "ratings": reviews.ratings[:2]},
        "Reviews.self": reviews, "Encoded.self": encoded,
        "Split.self": sentiment.random_split(reviews, 0.5, 0.5, key=KEY, validation=0.5), "vocabulary": vocabulary,
        "length": 8,
        "synthetic_reviews.*": {
            "count": 20, "positive": ["good", "fine"], "negative": ["bad"], "num_neutral": 20, "shortest": 6,
            "longest": 8, "planted": 3, "per_film": 2,
        },
        "HardmaxClassifier.*": parts | {"A": jnp.eye(2)[None]}, "HardmaxClassifier.self": model,
        "beta": jnp.asarray(1.0), "model": model, "path": str(FOLDER / "released.npz"), "fitted": fitted,
        "save.*": {"folder": "kept", "report": {"accuracy": 1.0}}, "dim": 2, "Recipe.of_dim.*": {"depth": 1},
        "Recipe.bag_of_words.*": {"epochs": 2}, "Recipe.with_.*": {"dim": 3, "drop": 0.1}, "recipe": recipe,
        "history": [{"loss": 1.0}], "logits": np.array([1.0, -1.0]), "start.words": 6, "out": "trained",
        "train_sentiment.split": "random", "train_sentiment.reviews": None, "unlabelled": ("a film", "a bad film"),
        "targets": np.array([0.25, 1.0, 0.0, 0.5]),
        "leaders_report.*": {"sample": 2, "top": 2, "horizon": 2},
        "Explanation.self": sentiment.Explanation(
            1.0, ("good",), (1,), (leading,), np.ones(1), np.zeros((2, 1, 1, 2)), np.ones((2, 1))
        ),
        "Evaluation.self": sentiment.Evaluation(0.5, 0.1, 1.0, None, None, 4, 0),
        "LeadersReport.self": sentiment.LeadersReport(
            1, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 2, (1.0,), 0.5, 0.1, 1, (leader,), (leader,), ()
        ),
    }  # fmt: skip


def _sweep() -> dict[str, Any]:
    double, axes, store = lambda beta: 2 * beta, {"beta": [1.0, 2.0]}, str(FOLDER / "sweep")
    sweep.run(double, axes, batch_size=2, store=store, progress=False)
    return {
        "values": np.array([1.0, 2.0]), "unit": "s", "dims": ("time",), "coords": {"time": [1.0]}, "function": double,
        "axes": axes, "batch_size": 2, "progress": False, "devices": jax.local_devices()[:1],
        "variables": {"result": sweep.Variable()}, "open.store": store, "coordinates": {"beta": 1.0}, "seed": 0,
        "dim": "draw", "horizon": 1.0,
        "found": xr.Dataset({"time": ("draw", [0.5, 1.0]), "reached": ("draw", [True, False])}),
        **same("time", "time"), **same("reached", "reached"),
    }  # fmt: skip


def _transformer() -> dict[str, Any]:
    words, neurons, width = 5, 3, D // HEADS
    into, out = normal(1, HEADS, D, width), normal(2, HEADS, width, D)
    w_in, w_out, embedding = normal(3, D, neurons), normal(4, neurons, D), normal(5, words, D)
    gain, ids, texts = jnp.ones(D), jnp.asarray([1, 2, 0, 3, 4]), np.asarray([[1, 2], [3, 0]])
    corpora = ("depth_profile", "mean_activations", "key_value_memory")
    norm = transformer.LayerNorm(gain, 0 * gain)
    attention = transformer.MultiHeadAttention(into, into, into, out)
    forward = transformer.FeedForward(w_in, w_out)
    block = transformer.Block(attention, forward, (norm, norm))
    free = transformer.Block(attention, forward, residual=transformer.NoNorm())
    stack = transformer.Transformer(block, 1)
    keys, values = normal(7, 3, width), normal(8, 3, width)
    table = transformer.LearnedPositions(normal(6, 6, D))
    model = transformer.LanguageModel(embedding, stack, table)
    lstm = transformer.LSTMLanguageModel.random(KEY, words, D, neurons)
    softmax, squares = cjx.SoftmaxAttention(1.0), jnp.ones((1, 1, N, N))
    transformer.save(free, FOLDER / "block", note=1)
    (FOLDER / "texts.txt").write_text("one\ntwo\n")
    shape = {"heads": HEADS, "hidden": neurons, "layers": 1}
    return {
        **shape, **same(into, *(f"MultiHeadAttention.{name}" for name in ("query", "key", "value"))),
        "NormalisationField.attention": softmax,
        "field": cjx.AttentionField(softmax, space=cjx.Euclidean()), "Transformer.blocks": block,
        **same(1, "Transformer.depth", "farthest", "steps", "top", "batch_size", "seed", "snapshots", "epoch"),
        **same(embedding, "embedding", "unembedding", "LearnedPositions.table"),
        **same(str(FOLDER / "block"), "load.folder", "load_further.folder"),
        **same(np.ones((2, 2), bool), *(f"{name}.present" for name in corpora)),
        "scale": 0.5,
        **same(jnp.float32, "LearnedPositions.__call__.dtype", "SinusoidalPositions.__call__.dtype"), "x": X,
        "present": jnp.ones(N, bool), "attention": attention, "MultiHeadAttention.output": out,
        "relative": transformer.RelativePositions(keys, values),
        "FeedForward.*": {"w_in": w_in, "w_out": w_out, "bias_in": jnp.ones(neurons), "bias_out": gain},
        "LayerNorm.*": {"gain": gain, "bias": gain}, "norm": norm, "norms": (norm, norm), "feed_forward": forward,
        "Transformer.of.blocks": [block, block], "layer": 0, "keys": keys, "RelativePositions.values": values,
        "k": width, "RotaryPositions.__call__.x": normal(9, N, width),
        "as_field.*": {"block": free, "layer": None, "space": cjx.Euclidean()}, "ids": ids, "tokens": ids,
        "texts": texts, "rows": jnp.asarray(texts), "words": words, "logit_lens.words": ids, "stack": stack,
        "LanguageModel.positions": table, "positions": 6, "model": model, "LanguageModel.self": model,
        "cell": lstm.cell, "LSTMLanguageModel.output": lstm.output, "LSTMLanguageModel.self": lstm, "forget": T,
        "LanguageModelHead.self": transformer.LanguageModelHead(), "logits": normal(9, N, words), "targets": ids,
        "ResidualStream.self": transformer.ResidualStream(
            jnp.ones((3, N, D)), X, X[None, None], X[None], X, squares, squares, squares
        ),
        "key_value_memory.words": 2, "activations": np.asarray([[1.0, 2.0], [3.0, 1.0]]),
        "labels": np.asarray([True, False]), "Detector.self": transformer.Detector(np.ones(neurons), 1, 0.5, 1, 1.0),
        "Detector.predict.activations": np.ones((2, neurons)), "save.*": {"folder": "model", "note": {"step": 1}},
        "module": free,
        "LanguageRecipe.*": shape | {
            "words": 16, "d": D, "length": 4, "steps": 2, "epoch_steps": 1, "learning_rate": 0.1,
            "embedding_rate": 0.1, "warm_up": 1, "weight_decay": 0.1, "held_out": 0.5, "positions": "rotary",
            "norm": "pre",
        },
        "LanguageRecipe.model.seed": 1, "out": "folder", "paths": [str(FOLDER / "texts.txt")],
        "recipe": transformer.LanguageRecipe(words=16, d=D, **shape),
    }  # fmt: skip


_MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "": _core, "hardmax": _hardmax, "sentiment": _sentiment, "transformer": _transformer, "probe": _probe,
    "sweep": _sweep, "phase": _phase, "plot": _plot, "experiments": _experiments, "design": _design,
}  # fmt: skip
MODULES = tuple(_MAKERS)


@functools.cache
def good_values(module: str) -> dict[str, Any]:
    """The good values of one module of clusterjax, without those that it takes from `clusterjax` itself."""
    return _MAKERS[module]()
