"""Names of models → routes: aliases, splits, tiers, fallbacks, shadows."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from headrace.config.fleet.models import Cause, ModelsConfig
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.models.resolve import resolve
from headrace.fleet.gateway.models.values import Asked, Route, Target, Trial


def config(*rules: dict[str, Any], **more: Any) -> ModelsConfig:
    return msgspec.convert({"rules": list(rules), **more}, ModelsConfig)


def route(
    rules: ModelsConfig, model: str, off: dict[str, str] | None = None, **asked: Any
) -> Route:
    return resolve(rules, off or {}, Asked(model=model, **asked))


def split(*weights: float, name: str = "m", **more: Any) -> dict[str, Any]:
    arms = [{"version": f"v{n}", "weight": weight} for n, weight in enumerate(weights)]
    return {"name": name, "split": arms, **more}


def test_a_name_without_a_rule_is_the_model() -> None:
    assert route(ModelsConfig(), "llama") == Route(targets=(Target(model="llama"),))


def test_aliases_lead_on() -> None:
    rules = config({"name": "gpt-4", "target": "chat"}, {"name": "chat", "target": "llama-70b"})
    found = route(rules, "gpt-4")
    assert found.targets == (Target(model="llama-70b"),)
    assert found.explanation == "gpt-4 -> chat; chat -> llama-70b"


def test_a_star_stands_for_any_text() -> None:
    rules = config(
        {"name": "openai/*", "target": "*"},
        {"name": "gpt-4*", "target": "llama"},
        {"name": "gpt-4o", "target": "special"},
    )
    assert route(rules, "openai/x").targets[0].model == "x"
    assert route(rules, "gpt-4-turbo").targets[0].model == "llama"
    assert route(rules, "gpt-4o").targets[0].model == "special"
    assert route(rules, "openai/gpt-4").targets[0].model == "llama"
    assert route(rules, "gpt-3").targets[0].model == "gpt-3"


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "a*b*"}, "at most one"),
        ({"name": "a", "target": "b*"}, "none in its name"),
        ({"name": "a", "target": "b", "tiers": [{"model": "c"}]}, "one of target, split and tiers"),
        ({"name": "a", "split": [{"version": "1", "canary": True}]}, "no canary"),
        ({"name": "a", "split": [{"weight": 0.0}]}, "no canary"),
        ({"name": "a", "split": [{"version": "1"}, {"version": "1"}]}, "same model and version"),
        ({"name": "a", "tiers": [{"model": "x", "up_to": 0.5}]}, "rising 'up_to'"),
        ({"name": "a", "tiers": [{"model": "x"}, {"model": "y"}]}, "rising 'up_to'"),
    ],
)
def test_rules_that_cannot_work_are_refused(rule: dict[str, Any], complaint: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=complaint):
        config(rule)


def test_rules_that_go_round_are_refused() -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match="a -> b -> c -> a"):
        config(
            {"name": "a", "target": "b"},
            {"name": "b", "tiers": [{"model": "c"}]},
            {"name": "c", "fallbacks": [{"model": "a"}]},
        )
    with pytest.raises((ConfigError, msgspec.ValidationError), match="same name"):
        config({"name": "a"}, {"name": "a"})


def test_patterns_that_go_round_end() -> None:
    rules = config({"name": "a*", "target": "b*"}, {"name": "bx*", "target": "ax*"})
    assert route(rules, "ax").targets[0].model in ("ax", "bx")
    growing = config({"name": "*", "target": "x*"})
    assert route(growing, "y").targets[0].model.endswith("y")


class TestSplit:
    def test_keys_are_divided_by_weight(self) -> None:
        rules = config(split(90, 10))
        arms = Counter(route(rules, "m", key=f"key-{n}").trials[0].arm for n in range(10_000))
        assert abs(arms["v1"] - 1000) <= 150

    def test_a_key_stays(self) -> None:
        rules = config(split(50, 50))
        for n in range(50):
            drawn = [route(rules, "m", key=f"{n}", draw=d / 9).targets for d in range(9)]
            assert drawn == drawn[:1] * 9

    def test_a_canary_that_grows_keeps_its_keys(self) -> None:
        small, large = config(split(90, 10)), config(split(70, 30))
        for n in range(2_000):
            if route(small, "m", key=f"{n}").targets[0].version == "v1":
                assert route(large, "m", key=f"{n}").targets[0].version == "v1"

    def test_splits_of_different_rules_are_independent(self) -> None:
        rules = config(split(50, 50, name="a"), split(50, 50, name="b"))
        both = sum(
            route(rules, "a", key=f"{n}").targets[0].version
            == route(rules, "b", key=f"{n}").targets[0].version
            for n in range(2_000)
        )
        assert 900 < both < 1_100

    def test_without_a_key_the_draw_decides(self) -> None:
        rules = config(split(3, 0, 1))
        arms = Counter(route(rules, "m", draw=n / 1000).targets[0].version for n in range(1000))
        assert arms == {"v0": 750, "v2": 250}

    def test_arms_may_be_models(self) -> None:
        rules = config({"name": "m", "split": [{"model": "x"}]}, {"name": "x", "target": "y"})
        found = route(rules, "m", key="k")
        assert found.targets == (Target(model="y"),)
        assert found.trials == (Trial(rule="m", arm="x"),)
        assert found.explanation == "split x 100%; x -> y"

    def test_a_canary_that_is_off_gets_nothing(self) -> None:
        arms = [{"version": "v0"}, {"version": "v1", "weight": 9.0, "canary": True}]
        rules = config({"name": "m", "split": arms})
        off = {"m": "errors 10% against 0%"}
        for n in range(50):
            found = route(rules, "m", off, key=f"{n}")
            assert found.targets[0].version == "v0"
            assert found.explanation.endswith("canary off: errors 10% against 0%")


class TestTiers:
    RULES = config(
        {
            "name": "auto",
            "tiers": [{"model": "small", "up_to": 0.3}, {"model": "large", "version": "v2"}],
        }
    )

    def test_a_simple_prompt_goes_to_the_first(self) -> None:
        found = route(self.RULES, "auto", body={"prompt": "hello"})
        assert found.targets[0].model == "small"
        assert found.explanation == "tier small, complexity 0.00 (simple 1.00)"

    def test_a_hard_one_goes_up(self) -> None:
        text = "Prove step by step that the integral $\\int x$ diverges; compare with the other theorem."
        found = route(self.RULES, "auto", body={"prompt": text})
        assert found.targets == (Target(model="large", version="v2"),)
        assert "reasoning 1.00" in found.explanation

    def test_a_bound_of_zero_is_a_bound(self) -> None:
        rules = config({"name": "a", "tiers": [{"model": "s", "up_to": 0.0}, {"model": "l"}]})
        assert route(rules, "a", body={"prompt": "hello"}).targets[0].model == "s"


class TestFallbacks:
    RULES = config(
        {"name": "chat", "target": "llama", "fallbacks": [{"model": "gpt", "when": ["error"]}]},
        {
            "name": "llama",
            "fallbacks": [{"version": "old"}, {"model": "long", "when": ["context", "error"]}],
        },
        {"name": "long", "target": "llama-long"},
    )

    def test_the_nearest_come_first(self) -> None:
        found = route(self.RULES, "chat")
        assert [str(target) for target in found.targets] == [
            "llama",
            "llama@old",
            "llama-long",
            "gpt",
        ]

    def test_each_is_for_its_causes(self) -> None:
        found = route(self.RULES, "chat")
        assert found.fallback(Cause.OVERLOADED, 1) == 1
        assert found.fallback(Cause.CONTEXT, 1) == 2
        assert found.fallback(Cause.ERROR, 1) == 1
        assert found.fallback(Cause.ERROR, 3) == 3
        assert found.fallback(Cause.ERROR, 4) is None
        assert found.fallback(Cause.REFUSED, 1) is None
        assert found.targets[0].when == ()

    def test_a_fallback_to_itself_is_none(self) -> None:
        rules = config({"name": "*", "fallbacks": [{"model": "big"}]})
        assert len(route(rules, "small").targets) == 2
        assert len(route(rules, "big").targets) == 1


class TestShadow:
    def test_a_share_of_requests_is_copied(self) -> None:
        rules = config({"name": "m", "shadow": {"version": "next", "share": 0.25}})
        shadows = [route(rules, "m", draw=n / 1000).shadow for n in range(1000)]
        copied = [shadow for shadow in shadows if shadow is not None]
        assert 220 < len(copied) < 280
        assert set(map(str, copied)) == {"m@next"}

    def test_a_shadow_may_be_another_model(self) -> None:
        rules = config({"name": "m", "shadow": {"model": "n"}}, {"name": "n", "target": "o"})
        assert str(route(rules, "m", draw=0.99).shadow) == "o"
        assert route(rules, "other", draw=0.0).shadow is None


def test_names_of_clients_cannot_break_a_header() -> None:
    rules = config({"name": "*", "target": "m"})
    found = route(rules, "x\r\nset-cookie: é" + "y" * 10_000)
    assert found.explanation.isascii()
    assert found.explanation.isprintable()
    assert len(found.explanation) <= 400


def test_a_target_selects_replicas() -> None:
    target = Target(model="m", version="v1", labels={"zone": "a"})
    assert target.selects("v1", {"zone": "a", "gpu": "b"})
    assert not target.selects("v2", {"zone": "a"})
    assert not target.selects("v1", {})
    assert Target(model="m").selects("any", {})
