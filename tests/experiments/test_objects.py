"""Objects that users build for `reproduce` are checked at once: one sentence for each wrong type or shape."""

import numpy as np
import pytest

from clusterjax.experiments import Claim, Film, Measured, Outcome, Source
from tests.experiments.own import NONE, PAPER, run
from tests.helpers import as_a_user


TS, XS = np.arange(4.0), np.zeros((4, 5, 3))
ON = Measured(NONE, NONE, {"tokens": 5})


def claim(**changed):
    given = {"says": "It is so.", "measured": "1", "criterion": "1", "holds": True, "kind": "finding"}
    return Claim(**(given | changed))


def outcome(**changed):
    given = {"caption": "", "claims": (), "parameters": {}, "series": {}, "draw": run, "film": None, "on": ON}
    return Outcome(**(given | changed))


WRONG = (
    (lambda: Source("A paper", "ALBERT", NONE), "networks must be a Subject, or a tuple of several, but it is 'ALBERT"),
    (lambda: Source("A paper", NONE, NONE, {"d": (1, 2)}), "size must be .* by name, but 'd' is a tuple of 2"),
    (lambda: Measured("none", NONE, {}), "network must be a Subject, but it is 'none'; pass Subject"),
    (lambda: claim(kind="proved"), "kind must be one of 'identity', 'paper', 'finding', but it is 'proved'"),
    (lambda: claim(kind="paper"), "source must be given for a claim of kind 'paper' and for no other"),
    (lambda: claim(source=PAPER), "source must be given for a claim of kind 'paper' and for no other"),
    (lambda: Film(TS, np.zeros((4, 5, 7))), "xs must be tokens of the plane or of space, but their dimension is 7"),
    (lambda: Film(TS[:3], XS), r"ts must be an array of real numbers of shape \(4,\), but its shape is \(3,\)"),
    (lambda: outcome(claims=["It is so."]), "claims must be .*, but entry 0 is 'It is so.'"),
    (lambda: outcome(parameters={"x0": XS}), r"parameters must be what JSON can hold, but it is not \(.*ndarray"),
    (lambda: outcome(film=XS), "film must be a Film, a function of a path, or None, but it is an array of shape"),
)


@pytest.mark.parametrize(("make", "words"), WRONG, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_what_is_wrong_is_refused_in_one_sentence(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}") as caught:
        make()
    assert str(caught.value).endswith(".") and "; " in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_of_numpy_become_numbers_of_python():
    """A NumPy integer is no int, and JSON takes neither NumPy integers nor NumPy booleans."""
    with as_a_user():
        on = Measured(NONE, NONE, {"tokens": np.int64(5), "beta": (np.float32(0.5), 2)})
        one = claim(kind="paper", source=PAPER, holds=np.bool_(True), value=np.float32(2.0), error=np.array(1.0))
    assert on.size == {"tokens": 5, "beta": (0.5, 2)} and type(on.size["tokens"]) is int
    assert one.holds is True and type(one.value) is float and type(one.error) is float
    assert np.isnan(claim(value=float("nan")).value), "NaN stands for what was not measured"


def test_what_is_right_is_kept():
    with as_a_user():
        film = Film(list(TS), XS.tolist(), highlight=None, trail=True)
        whole = outcome(claims=[claim()], series={"t": TS, "rows": [[1, 2], [3, 4]], "none": [np.nan]}, film=film)
    assert film.xs.shape == XS.shape and film.ts.tolist() == TS.tolist()
    assert whole.claims == (claim(),) and whole.film is film
