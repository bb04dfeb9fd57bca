"""Compiled quickly: the same values, with the settings of XLA that this release of jaxlib knows, and with none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.sentiment import _explain, _explain as _quick, explain, load


TEXT = "A wonderful film, not a boring one, with a bad end and a wonderful cast."


@pytest.fixture
def settings(monkeypatch):
    """Sets what is asked of XLA, as if nothing had been asked yet."""

    def ask(wanted):
        monkeypatch.setattr(_quick, "_SETTINGS", wanted)
        _quick.known_settings.cache_clear()

    yield ask
    _quick.known_settings.cache_clear()


def test_a_short_review_is_explained_as_a_long_one_is(monkeypatch):
    quickly = explain(load(), TEXT)
    monkeypatch.setattr(_explain, "_SHORT", 0)
    usual = explain(load(), TEXT)
    assert [leader.word for leader in quickly.leaders] == [leader.word for leader in usual.leaders] != []
    np.testing.assert_allclose(quickly.path, usual.path, rtol=1e-5, atol=1e-6)
    assert quickly.logit == pytest.approx(usual.logit, rel=1e-5)


def test_what_this_jaxlib_does_not_know_is_left_out(settings):
    settings({"xla_nonsense": 1, "xla_backend_optimization_level": 0})
    assert _quick.known_settings() == {"xla_backend_optimization_level": 0}
    settings({"xla_nonsense": 1})
    assert _quick.known_settings() == {}
    assert float(_quick.filter_jit_quickly(lambda x: 2 * x)(jnp.asarray(1.5))) == 3.0


def test_settings_reach_xla_once_and_on_a_cpu_alone(settings, monkeypatch):
    asked = []
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(_quick.eqx, "filter_jit", lambda function, **options: asked.append(options) or function)
    settings({"xla_backend_optimization_level": 0})
    run = _quick.filter_jit_quickly(lambda x: 2 * x)
    assert (run(1), run(2)) == (2, 4) and asked == [{"compiler_options": {"xla_backend_optimization_level": 0}}]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert run(3) == 6 and asked[1:] == [{}]
