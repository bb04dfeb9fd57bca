"""`clusterjax probe` from end to end on small networks: its input and output, and killed runs that continue."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax.random as jr
import numpy as np
import pytest
from matplotlib.figure import Figure

import clusterjax.experiments.framework.run as machinery
from clusterjax import probe
from clusterjax._cli import main
from clusterjax.experiments import Experiment, Files, Outcome, Settings, find_experiments, reproduce
from clusterjax.experiments.figures.figure2 import Results as Heads, baselines
from clusterjax.experiments.framework.experiment import Claim
from clusterjax.experiments.framework.run import fingerprint
from clusterjax.experiments.shared.networks import further, model_of, network_of
from clusterjax.experiments.shared.sources import particles
from tests.cli.test_main import refused
from tests.gguf_cases import SIZES as GGUF_SIZES, byte_words, network as gguf_network, write_gguf
from tests.helpers import as_a_user
from tests.network_cases import checkpoint
from tests.probe.test_families import CASES
from tests.probe_cases import GPT2, IDS, MASK, SHARED, tensors_of, tiny, write


FIGURES = ["similarity", "heads"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("network"))


@pytest.fixture(autouse=True)
def two_figures(monkeypatch):
    """Leaves out the other two figures, which other tests draw."""
    monkeypatch.setattr("clusterjax._cli._PROBE_FIGURES", FIGURES)


def call(settings, out, *more):
    words = ["probe", settings.albert, "--texts", settings.texts, "--out", out, "--quick", "--length", "12", *more]
    return main([*map(str, words), "--no-gif", "--formats", "png"])


def results(out):
    """The records, without the times, which differ between two runs."""
    records = [json.loads((out / name / "results.json").read_text("utf-8")) for name in FIGURES]
    return [{name: value for name, value in one.items() if name not in ("seconds", "finished")} for one in records]


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_and_its_numbers_are_those_of_one_that_was_not(settings, tmp_path, monkeypatch, capsys):
    stream, tried, done = probe.stream, [], []

    def killed(*given, **options):
        tried.append(None)
        if len(tried) in (4, 13):  # within the shuffled texts of the similarity, and within the sinks of the heads
            raise KeyboardInterrupt
        found = stream(*given, **options)
        done.append(None)
        return found

    monkeypatch.setattr("clusterjax.probe.measures.survey.stream", killed)
    out = tmp_path / "killed"
    assert call(settings, out) == 130
    (kept,) = (out / ".clusterjax.unfinished" / "similarity").iterdir()
    assert {file.name for file in kept.iterdir()} == {"trained.safetensors", "shuffled.safetensors"}
    assert not (out / "similarity").exists()
    assert call(settings, out) == 130
    assert (out / "similarity" / "results.json").is_file() and not kept.exists()
    assert call(settings, out) == 0 and not (out / ".clusterjax.unfinished").exists()
    measured = len(done)
    assert call(settings, tmp_path / "whole") == 0
    assert measured == len(done) - measured, "nothing is measured twice"
    assert results(out) == results(tmp_path / "whole")
    capsys.readouterr()
    assert call(settings, out) == 0
    assert "reading" not in capsys.readouterr().out


def test_what_is_unfinished_of_other_settings_is_removed(tmp_path):
    for seed in (0, 1):
        with pytest.raises(KeyboardInterrupt), machinery._unfinished(tmp_path, {"name": "one", "seed": seed}) as store:
            store.mkdir(parents=True)
            raise KeyboardInterrupt
        assert list((tmp_path / ".clusterjax.unfinished" / "one").iterdir()) == [store]
    with machinery._unfinished(tmp_path, {"name": "one", "seed": 1}) as again:
        assert again == store and again.is_dir()
    # The folder of all figures stays until the run ends, since another process may be making a folder in it.
    assert list((tmp_path / ".clusterjax.unfinished").iterdir()) == []


def test_what_decides_a_figure(settings, tmp_path):
    one, two, training = find_experiments(["similarity", "heads", "albert-training"])
    asked = lambda experiment, **options: fingerprint(experiment, Settings(**options), Files())
    given = {"albert": settings.albert, "texts": settings.texts, "quick": True}
    assert asked(one, **given) == asked(one, **given, store=tmp_path)
    assert asked(one, **given) != asked(one, **given, depth=8) and asked(two, **given) == asked(two, **given, depth=8)
    for option in ({"most_texts": 5}, {"length": 9}):
        assert asked(two, **given) != asked(two, **given, **option)
    assert asked(training) == asked(training, albert=tmp_path / "nowhere"), "it shows the network of the package"
    assert asked(training)["network"] != asked(one)["network"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    (
        ("--num-layers", 3, "--num-layers must be an integer from 4 to 1000000, but it is 3"),
        ("--num-heads", 3, "--num-heads must divide the hidden size, 16, but it is 3"),
    ),
)
def test_options_out_of_range(settings, tmp_path, capsys, option, value, words):
    asked = (settings.albert, "--texts", settings.texts, "--out", tmp_path / "out", option, value)
    assert words in refused(capsys, *asked, command="probe") and not (tmp_path / "out").exists()


def test_options_do_what_they_say(settings):
    given = {"albert": settings.albert, "texts": settings.texts}
    found = network_of(Settings(**given, most_texts=7, length=9, depth=5))
    assert found.texts.mask.shape == (7, 9)
    whole = network_of(Settings(**given, most_texts=7))
    long = int((whole.texts.mask.sum(axis=1) > 9).sum())
    assert long and f", {long} of them cut to that" in found.of_texts
    assert found.reading == f"reading 7 of 20 texts, evenly spread; {long} of them cut to 9 tokens"
    assert whole.texts.mask.shape == (7, 32), "no longer than the positions"
    assert further(found.model, Settings(depth=5)).num_layers == 5
    assert (further(found.model, Settings()).num_layers, found.model.num_layers) == (24, 3)
    with pytest.warns(UserWarning, match="is cut into 2"):
        model, words = model_of(Settings(**given, heads=2))
    assert model.num_heads == 2 and "cut into 2 heads, which makes another network" in words


def test_layers_of_an_inner_group_stay_together(tmp_path):
    config = SHARED | {"inner_group_num": 2}
    folder = checkpoint(tmp_path, config | {"vocab_size": 70})
    network = network_of(folder).model
    assert network.num_layers == 8 and further(network, Settings(depth=10)).num_layers == 10
    with as_a_user(), pytest.raises(ValueError, match="depth must be a multiple of 2, the layers of the network, but"):
        further(network, Settings(depth=9))


@pytest.mark.parametrize("lines", ("ba lo mi ne\n", "ba lo mi\nba lo mi\n"), ids=("one", "the same twice"))
def test_a_single_text_is_refused(settings, tmp_path, capsys, lines):
    (tmp_path / "one.txt").write_text(lines)
    asked = (settings.albert, "--texts", tmp_path / "one.txt", "--out", tmp_path / "out")
    line = refused(capsys, *asked, command="probe")
    assert "texts must be two or more different ones" in line and not (tmp_path / "out").exists()


def test_the_bridge_asks_for_texts_to_measure_and_others_to_fit_to(settings, tmp_path):
    with as_a_user(), pytest.raises(ValueError, match="texts must be at least 4 for albert-bridge, but there are 3"):
        reproduce(["figure3", "albert-bridge"], tmp_path / "out", Settings(
            albert=settings.albert, texts=settings.texts, most_texts=3
        ))  # fmt: skip
    assert not (tmp_path / "out").exists()


PHONEMES = '{"phonemes": "ab"}\n{"phonemes": "ba"}\n'


@pytest.mark.parametrize(
    ("vocabulary", "lines", "words"),
    (
        ('{"a": 3}', '{"phonemes": 5}\n', "in line 1 phonemes is 5 in place of a text"),
        ('{"a": 3}', '{"phonemes": "a"}\n["a"]\n', "lines of JSON with 'phonemes'"),
        ('{"a": "3"}', PHONEMES, "must give each phoneme an integer"),
        ('{"a": 3', PHONEMES, "must be JSON"),
        ('{"a": 30}', PHONEMES, "from 0 to 29"),
    ),
)
def test_phonemes_that_cannot_be_read(tmp_path, capsys, vocabulary, lines, words):
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    (folder / "phoneme_vocab.json").write_text(vocabulary)
    (folder / "phonemized_samples.jsonl").write_text(lines)
    assert words in refused(capsys, folder, "--out", tmp_path / "out", command="probe")


def test_phonemes_are_divided_at_line_feeds_alone(tmp_path):
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    (folder / "phoneme_vocab.json").write_text('{"a": 3, "b": 4}')
    (folder / "phonemized_samples.jsonl").write_text('{"phonemes": "a\u2028b"}\r\n{"phonemes": "b"}\n', "utf-8")
    found = network_of(Settings(albert=folder, length=4))
    assert found.texts.token_ids.tolist() == [[0, 3, 4, 0], [0, 4, 0, 0]]
    assert found.reading == "reading all 2 texts; none of them cut to 4 tokens"


def test_numbers_that_are_not_finite_are_null(tmp_path, monkeypatch):
    claim = Claim(
        says="It is so.",
        measured="nan",
        criterion="more",
        holds=False,
        kind="finding",
        value=float("nan"),
        error=np.float64("inf"),
    )
    run = lambda settings, say: Outcome(
        "Seen.", (claim,), {"a": [math.nan, (1.5, -math.inf)]}, {"x": [1.0, math.nan]}, Figure, None,
        on=particles(tokens=2),
    )  # fmt: skip
    experiment = Experiment("one", "the_one", "Title", "Claim", run)
    monkeypatch.setattr(machinery, "find_experiments", lambda names: [experiment])
    (record,) = reproduce([], tmp_path, Settings(), Files(("png",)), say=lambda line: None)
    assert json.loads((tmp_path / "one" / "results.json").read_text("utf-8"), parse_constant=pytest.fail) == record
    assert record["series"] == {"x": [1.0, None]} and record["parameters"]["a"] == [None, [1.5, None]]
    assert (record["claims"][0]["value"], record["claims"][0]["error"]) == (None, None)


@pytest.fixture(scope="module")
def bare(settings, tmp_path_factory):
    """The network without its tokenizer, with its texts as token ids in files; and the texts as the network reads
    them."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(settings.albert / name, folder / name)
    by_texts = network_of(replace(settings, length=12)).texts
    rows = [ids[present].tolist() for ids, present in zip(*by_texts, strict=True)]
    (folder / "ids.txt").write_text("\n".join(" ".join(map(str, row)) for row in rows) + "\n")
    (folder / "ids.json").write_text(json.dumps(rows))
    return folder, by_texts


def test_token_ids_are_read_as_they_are(bare):
    folder, by_texts = bare
    for name in ("ids.txt", "ids.json"):
        network = network_of(Settings(quick=True, albert=folder, ids=folder / name, length=12))
        width = by_texts.mask.shape[1]
        np.testing.assert_array_equal(network.texts.mask[:, :width], by_texts.mask)
        assert not network.texts.mask[:, width:].any()
        ids = network.texts.token_ids[:, :width]
        np.testing.assert_array_equal(ids[by_texts.mask], by_texts.token_ids[by_texts.mask])
        assert (
            network.of_texts == f"16 texts of at most 12 token ids of {name}" and "none of them cut" in network.reading
        )
    few = network_of(Settings(quick=True, albert=folder, ids=folder / "ids.txt", length=5, most_texts=4))
    assert few.texts.mask.shape == (4, 5) and few.texts.mask.all() and "4 of them cut to that" in few.of_texts
    assert "reading 4 of 16 texts" in few.reading


@pytest.mark.exhaustive
def test_a_probe_of_a_folder_without_tokenizer_takes_ids(bare, tmp_path, capsys, monkeypatch):
    folder, _ = bare
    monkeypatch.setattr("clusterjax._cli._PROBE_FIGURES", ["heads"])
    words = ["probe", folder, "--quick", "--length", "12", "--no-gif", "--formats", "png", "--out", tmp_path / "out"]
    assert main([*map(str, words), "--ids", str(folder / "ids.txt")]) == 0
    record = json.loads((tmp_path / "out" / "heads" / "results.json").read_text("utf-8"))
    assert record["parameters"]["texts"] == "16 texts of at most 12 token ids of ids.txt"
    assert all(claim["holds"] for claim in record["claims"] if claim["kind"] == "identity")
    capsys.readouterr()
    assert main([*map(str, words), "--texts", str(folder / "ids.txt")]) == 2
    line = capsys.readouterr().err
    assert "MODEL must have a tokenizer to read texts, but" in line and "name a file of token ids as ids" in line
    assert main([*map(str, words), "--texts", "a", "--ids", "b"]) == 2
    assert "--ids must be given in place of texts, but texts are 'a'" in capsys.readouterr().err
    (folder / "bad.txt").write_text("1 2\n3 70\n")
    assert main([*map(str, words), "--ids", str(folder / "bad.txt")]) == 2
    line = capsys.readouterr().err
    assert "--ids must be whole numbers from 0 to 69" in line and "line 2 of" in line and "holds 70; mend it." in line


def probed(place, out, rows):
    """Runs `clusterjax probe` on a network with token ids; returns the records by the names of their folders."""
    ids = out.with_suffix(".txt")
    ids.write_text("\n".join(" ".join(map(str, row)) for row in rows))
    assert (
        main(["probe", *map(str, (place, "--ids", ids, "--out", out)), "--quick", "--no-gif", "--formats", "png"]) == 0
    )
    places = sorted(entry for entry in out.iterdir() if entry.is_dir())
    return {place.name: json.loads((place / "results.json").read_text("utf-8")) for place in places}


def folder_of(tmp_path, family):
    """The folder of a network of this family with random weights."""
    config = CASES[family][1] | CASES[family][2] | {"model_type": family}
    network = probe.from_config(config, jr.key(0)).network
    return write(tmp_path / family, config, probe.tensors(network))


def test_heads_that_no_particle_model_has(tmp_path, capsys, monkeypatch):
    """Gemma 2 caps its scores, so that a probe leaves out the particles, which are refused by their own name."""
    monkeypatch.setattr("clusterjax._cli._PROBE_FIGURES", ["particles"])
    folder = folder_of(tmp_path, "gemma2")
    assert probed(folder, tmp_path / "out", IDS.reshape(6, 4)) == {}
    said = capsys.readouterr().out
    assert "particles is left out: model must have heads that a particle model has, but 'gemma2' has caps" in said
    with as_a_user(), pytest.raises(ValueError, match="model must have heads that a particle model has"):
        reproduce(["albert-bridge"], tmp_path / "alone", Settings(albert=folder, ids=tmp_path / "out.txt", quick=True))


def test_images_are_no_texts(tmp_path, capsys):
    folder = folder_of(tmp_path, "vit")
    line = refused(capsys, folder, "--out", tmp_path / "out", command="probe")
    assert (
        "MODEL must read words, since texts are measured, but 'vit' reads images; pass images to probe.trace." in line
    )


def test_names_of_a_probe_have_no_numbers_of_a_paper():
    names = ["similarity", "heads", "particles", "spectra"]
    found = find_experiments([*names, "figure1"])
    assert [experiment.name for experiment in found] == ["figure1", *names]
    assert found[1].title == "The similarity of tokens in a trained network" and found[1].run is found[0].run
    assert not any("igure" in experiment.title for experiment in found[1:])


def test_baselines_of_layers_with_and_without_windows():
    """The identity holds where only some layers have a window, and the claim says so."""
    for kind, where in (("llama", "at all heads of a layer"), ("gpt2", "at all layers and heads")):
        model = tiny(kind)
        sinks = probe.attention_sinks(model, probe.Encoded(IDS, MASK))
        m = object.__new__(Heads)  # a claim reads two parts of a measurement only
        vars(m).update(network=SimpleNamespace(model=model), sink_controls=SimpleNamespace(trained=sinks))
        found = baselines(m)
        assert found.holds and found.says.endswith(f"equal {where}.")


def test_random_weights_of_a_file_that_gives_no_spread(tmp_path):
    """A GGUF file does not state its initialisation, so that the caption states that of the controls."""
    model, words = model_of(Settings(albert=write_gguf(tmp_path / "a.gguf", gguf_network())))
    assert "its random weights of the spread 0.02, because its file gives none" in words
    drawn = probe.randomise(model, jr.key(0)).network.layers[0].attention.query.kernel[...]
    assert 0.018 < drawn.std() < 0.022


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ("gpt2", "gguf", "gemma2", "language-model"))
def test_all_figures_of_other_networks(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("clusterjax._cli._PROBE_FIGURES", ["similarity", "heads", "particles", "spectra"])
    if kind == "gguf":
        sizes = GGUF_SIZES | {"vocab_size": 258}  # a special token, the bytes, and one more word
        place = write_gguf(tmp_path / "a.gguf", gguf_network(sizes), sizes, words=byte_words())
    elif kind == "language-model":
        place = kind
    else:
        place = folder_of(tmp_path, kind) if kind in CASES else write(tmp_path / kind, GPT2, tensors_of(GPT2))
    records = probed(place, tmp_path / "out", np.random.default_rng(0).integers(1, 20, (6, 8)))
    drawn = {"heads", "particles", "similarity", "spectra"} - ({"particles"} if kind == "gemma2" else set())
    assert set(records) == drawn
    for name, record in records.items():
        assert record["files"] == [f"{name}.png"] and record["command"].startswith(f"clusterjax probe {place} ")
        assert not any(claim["verdict"] == "VIOLATED" for claim in record["claims"])
    assert "Clustering in Transformers" in (tmp_path / "out" / "index.html").read_text("utf-8")
