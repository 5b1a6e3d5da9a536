import math
from pathlib import Path

import pytest

from headrace.config import env
from headrace.core.errors import ConfigError

NAME = "HEADRACE_TEST_VALUE"


def test_unset_and_empty_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    accessors = (env.get, env.get_int, env.get_float, env.get_bool, env.get_path)
    assert [read(NAME) for read in accessors] == [None] * 5
    monkeypatch.setenv(NAME, "")
    assert [read(NAME) for read in accessors] == [None] * 5


def test_typed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "7")
    assert (env.get(NAME), env.get_int(NAME), env.get_float(NAME)) == ("7", 7, 7.0)
    monkeypatch.setenv(NAME, "off")
    assert env.get_bool(NAME) is False
    monkeypatch.setenv(NAME, "~/x")
    assert env.get_path(NAME) == Path.home() / "x"


@pytest.mark.parametrize("text", ["seven", "nan", "inf", "1,5"])
def test_a_bad_value_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(NAME, text)
    for read in (env.get_int, env.get_float, env.get_bool):
        with pytest.raises(ConfigError, match=NAME):
            read(NAME)


def test_float_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "1e3")
    value = env.get_float(NAME)
    assert value is not None
    assert math.isfinite(value)


def test_cache_home_follows_our_variable_then_xdg_then_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", "/a")
    assert env.cache_home() == Path("/a")
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert env.cache_home() == Path("/b/headrace")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert env.cache_home() == Path.home() / ".cache/headrace"


def test_child_lays_changes_over_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "old")
    changed = env.child({NAME: "new"})
    assert changed[NAME] == "new"
    assert env.get(NAME) == "old"
    assert env.with_prefix("HEADRACE_TEST_") == {NAME: "old"}
