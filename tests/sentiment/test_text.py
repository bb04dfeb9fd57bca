"""Text to words: the recipe against a reader of single characters, and the effect of each option."""

import json

import numpy as np
import pytest

from clusterjax.sentiment import Recipe, TextOptions
from tests.helpers import as_a_user
from tests.reference import text as reference


PIECES = (
    *"not no nor never cannot Never NOT good BAD film the The wasn't didn’t CAN`T n't n'the don't_ don'té".split(),
    *"a I x <br /> < > <> <<b>> é É K ſ İ ’ ' ` _ 1 10 9th . , ; : ! ? ( ) \" - -- & ... sooo OOH ca \\ \\1".split(),
    *(" ", "  ", "\n", "\t", "\x85", "\x96", "\xa0", "\x00", "\ud800", "\u2028", "日本", "😀", ""),
)


def random_text(rng, pieces):
    glue = ("", " ", " ", " ")
    return "".join(PIECES[i] + glue[j] for i, j in rng.integers((len(PIECES), len(glue)), size=(pieces, 2)))


TEXTS = [random_text(np.random.default_rng(seed), pieces) for seed in range(300) for pieces in (1, 4, 60)]


def test_recipe_is_that_of_the_reference():
    options = TextOptions()
    for text in TEXTS:
        assert options.words(text) == reference.recipe(text), text


@pytest.mark.parametrize("scope", (1, 2, 7))
def test_negation_scope_is_that_of_the_reference(scope):
    options = TextOptions(negation_scope=scope)
    for text in TEXTS:
        assert options.words(text) == reference.recipe(text, scope), text


@pytest.mark.parametrize(("scope", "n"), ((3, 2), (1, 3), (2, 7)))
def test_ngrams_are_those_of_the_reference(scope, n):
    options = TextOptions(negation_scope=scope, ngrams=n)
    for text in TEXTS:
        assert options.words(text) == reference.recipe_ngrams(text, scope, n), text


def test_published_pipeline_is_that_of_the_reference():
    options = TextOptions.published()
    for text in TEXTS:
        assert options.words(text) == reference.published(text), text


EXAMPLES = (
    ("", []),
    ("The and of", []),
    ("It wasn't that good.<br />AWFUL!", ["not_good", "awful"]),
    ("no plot, great cast", ["not_plot", "great", "cast"]),
    ("not one two three four", ["not_one", "not_two", "not_three", "four"]),
    ("not one never two three four five", ["not_one", "not_two", "not_three", "not_four", "five"]),
    ("not of the one", ["not_one"]),
    ("I can't. Good", ["ca", "good"]),
    ("not<br />good", ["good"]),
    ("not <i>good</i>", ["good"]),
    ("10/10 café", ["caf"]),
)


@pytest.mark.parametrize(("text", "words"), EXAMPLES)
def test_recipe_by_hand(text, words):
    assert TextOptions().words(text) == words


OPTIONS = (
    (dict(lower=False), "The Good NOT bad", ["The", "Good", "NOT", "bad"]),
    (dict(tag=" "), "not<br />good", ["not_good"]),
    (dict(tag=r" \1 \g<0> end "), "a<br />b", ["end"]),
    (dict(expand_not=False), "wasn't good", ["good"]),
    (dict(negation_scope=0), "not good, never bad", ["good", "never", "bad"]),
    (dict(negators={"hardly"}), "hardly good not bad", ["not_good", "not_bad"]),
    (
        dict(negators=("not", "without"), negation_rules=True),
        "not without charm, not a really bad thing, without luck",
        ["charm", "really", "not_bad", "thing", "without", "not_luck"],
    ),
    (
        dict(negation_rules=True),
        "not never not good never bad. NOT only clever, if not the worst",
        ["not_good", "not_bad", "clever", "worst"],
    ),
    (dict(stop_words=()), "not the end", ["not_the", "not_end"]),
    (dict(single_letters=True), "plan b of x", ["plan", "b", "x"]),
    (dict(drop_links=True), "see www.bad.com/awful here", ["see"]),
    (dict(glue=True), "no b4d café. go9od", ["not_bd", "not_caf", "good"]),
    (dict(longest_run=2), "sooo goood", ["soo", "good"]),
    (dict(longest_run=1), "sooo goood", ["god"]),
    (dict(ngrams=2), "a waste of time, not worth it", ["waste", "time", "waste time", "not_worth"]),
    (dict(ngrams=3), "Waste of good time", ["waste", "good", "waste good", "time", "good time", "waste good time"]),
)


@pytest.mark.parametrize(("options", "text", "words"), OPTIONS, ids=lambda value: str(value)[:40])
def test_each_option(options, text, words):
    assert TextOptions(**options).words(text) == words
    assert TextOptions().words(text) != words


RULES = (
    # At the head of a clause a negator acts on all of it until a further negator; elsewhere it stays a word of its own.
    ("Nobody at the desk was rude. The film is good", "not_desk not_rude film good"),
    ("good, none of the towels were dirty", "good not_towels not_dirty"),
    ("There is nothing to like in this cake", "nothing not_like cake"),
    ("It is neither funny nor clever", "neither not_funny not_clever"),
    ("Nothing in this bar was not good, never mind", "not_bar good not_mind"),
    ("Nothing.", ""),
    # Two negators in a row cancel, and neither remains.
    ("There is nothing not to like in this cake", "like cake"),
    ("not without charm", "charm"),
    ("There is nothing really not good", "nothing really good"),
    # Comparisons, whose negation may praise.
    ("It could not be funnier", "funnier"),
    ("It couldn't have been worse", "worse"),
    ("It could be funnier", "not_funnier"),
    ("It could be clever, and never another", "could clever not_another"),
    ("I have never had a better pizza", "better pizza"),
    ("I've seen more moving films", "not_moving films"),
    ("This is no better than her first", "not_better first"),
    ("It is not funnier", "not_funnier"),
)


@pytest.mark.parametrize(("text", "words"), RULES)
def test_rules_of_negation(text, words):
    assert " ".join(Recipe(negation="reflection").text_options().words(text)) == words


def test_lemmas_come_after_the_stop_words_and_before_them():
    lemmas = {"was": "wa", "films": "film", "mes": "me"}
    options = TextOptions(lemmatise=lambda word: lemmas.get(word, word))
    assert options.words("Was films, mes; not mes films") == ["film", "not_film"]
    assert TextOptions(lemmatise=str.upper).words("not films. Good") == ["not_FILMS", "GOOD"]
    assert TextOptions.published(lambda word: "x" + word).words("The films") == ["xThe", "xfilms"]


SETTINGS = (
    TextOptions(),
    TextOptions.published(),
    TextOptions(tag=" ", negators=("hardly",), stop_words={"the"}, longest_run=3, ngrams=2, negation_rules=True),
)


@pytest.mark.parametrize("options", SETTINGS, ids=("recipe", "published", "other"))
def test_options_survive_json(options):
    back = TextOptions.from_record(json.loads(json.dumps(options.record())))
    assert back == options and hash(back) == hash(options)
    assert all(back.words(text) == options.words(text) for text in TEXTS[:100])


def test_options_that_a_record_leaves_out_have_their_defaults():
    assert TextOptions.from_record({"ngrams": 2, "negators": ["not"]}) == TextOptions(ngrams=2, negators={"not"})


def test_a_lemmatiser_is_passed_again():
    options = TextOptions(lemmatise=str.upper)
    assert TextOptions.from_record(json.loads(json.dumps(options.record())), lemmatise=str.upper) == options
    with pytest.raises(ValueError, match=r"^lemmatise must be what it was.*recorded with one.*pass the same"):
        TextOptions.from_record(options.record())
    with pytest.raises(ValueError, match=r"^lemmatise must be what it was.*recorded without one.*pass None"):
        TextOptions.from_record(TextOptions().record(), lemmatise=str.upper)


@pytest.mark.parametrize(
    ("change", "match"),
    (
        ({"lower": "yes"}, "lower must be True or False"),
        ({"negation_scope": 2.0}, "negation_scope must be an integer"),
        ({"stop_words": 3}, "stop_words must be a sequence of words"),
        ({"stop_words": [3]}, "stop_words must be a sequence of words"),
        ({"new": 3}, "record must hold the options"),
    ),
)
def test_records_of_other_options_are_refused(change, match):
    with as_a_user(), pytest.raises(ValueError, match=match):
        TextOptions.from_record({**TextOptions().record(), **change})
    with as_a_user(), pytest.raises(ValueError, match="record must hold the options"):
        TextOptions.from_record(["lower"])
