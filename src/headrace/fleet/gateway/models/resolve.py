"""One value in, one value out: a request's model name becomes its route."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from headrace.config.fleet.models import ModelRule, ModelsConfig, Selection, Tier
from headrace.fleet.gateway.models.classify import Complexity, classify
from headrace.fleet.gateway.models.split import assign
from headrace.fleet.gateway.models.values import Asked, Route, Target, Trial

#: Steps from name to name: the configuration has no circle, but patterns may make one.
_MAX_STEPS: Final = 16
_MAX_TARGETS: Final = 8
_MAX_WORDS: Final = 400


class _Match(NamedTuple):
    rule: ModelRule
    star: str


class _Walk:
    """The way from one name to its target."""

    def __init__(self, config: ModelsConfig, off: Mapping[str, str], asked: Asked) -> None:
        self._config = config
        self._off = off
        self._asked = asked
        self._complexity: Complexity | None = None
        self.words: list[str] = []
        self.trials: list[Trial] = []
        self.rules: list[ModelRule] = []

    def follow(self, name: str) -> Target:
        """Where `name` leads, taking notes."""
        selection, seen = Selection(model=name), {name}
        for _ in range(_MAX_STEPS):
            match = _find(self._config.rules, name)
            if match is None:
                break
            self.rules.append(match.rule)
            chosen = self._choose(match)
            selection = _narrowed(selection, chosen, name)
            if selection.model in seen:
                break
            name = selection.model
            seen.add(name)
        return Target(model=selection.model, version=selection.version, labels=selection.labels)

    def _choose(self, match: _Match) -> Selection:
        rule, star = match
        if rule.target:
            target = rule.target.replace("*", star)
            self.words.append(f"{self._name(match)} -> {target}")
            return Selection(model=target)
        if rule.split:
            return self._split(rule)
        if rule.tiers:
            return self._tier(rule.tiers)
        return Selection()

    def _name(self, match: _Match) -> str:
        return match.rule.name.replace("*", match.star)

    def _split(self, rule: ModelRule) -> Selection:
        arms = [arm for arm in rule.split if not (arm.canary and rule.name in self._off)]
        arm = assign(rule.name, arms, self._asked.key, self._asked.draw)
        total = sum(one.weight for one in rule.split)
        self.trials.append(Trial(rule=rule.name, arm=arm.name))
        why = f", canary off: {self._off[rule.name]}" if rule.name in self._off else ""
        self.words.append(f"split {arm.name} {100 * arm.weight / total:.3g}%{why}")
        return arm

    def _tier(self, tiers: Sequence[Tier]) -> Selection:
        if self._complexity is None:
            self._complexity = classify(self._config.classifier, self._asked.body)
        score = self._complexity.score
        tier = next((tier for tier in tiers if score <= tier.up_to), tiers[-1])
        self.words.append(f"tier {tier.model}, {self._complexity}")
        return tier


def resolve(config: ModelsConfig, off: Mapping[str, str], asked: Asked) -> Route:
    """The route of a request.

    `off`: names of rules whose canary is switched off, each with the reason (`Canaries.off`). Depends on its arguments only.
    """
    if not config.rules:
        return Route(targets=(Target(model=asked.model),))
    walk = _Walk(config, off, asked)
    targets = [walk.follow(asked.model)]
    # The last rule is the nearest to the model: its fallbacks know best.
    for rule in reversed(walk.rules):
        for fallback in rule.fallbacks:
            target = _followed(config, off, asked, fallback, targets[0].model)
            if not any(_same(target, other) for other in targets):
                targets.append(structs.replace(target, when=fallback.when))
    return Route(
        targets=tuple(targets[:_MAX_TARGETS]),
        trials=tuple(walk.trials),
        shadow=_shadow(config, off, asked, walk.rules),
        explanation=_printable("; ".join(walk.words)),
    )


def _followed(
    config: ModelsConfig, off: Mapping[str, str], asked: Asked, wanted: Selection, default: str
) -> Target:
    """Where another model leads, narrowed to what was wanted of it."""
    target = _Walk(config, off, asked).follow(wanted.model or default)
    return structs.replace(
        target,
        version=wanted.version or target.version,
        labels={**target.labels, **wanted.labels},
    )


def _same(left: Target, right: Target) -> bool:
    return (left.model, left.version, left.labels) == (right.model, right.version, right.labels)


def _printable(text: str) -> str:
    """As a header can carry it: names come from clients."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:_MAX_WORDS])


def _shadow(
    config: ModelsConfig, off: Mapping[str, str], asked: Asked, rules: Sequence[ModelRule]
) -> Target | None:
    shadow = next((rule.shadow for rule in rules if rule.shadow is not None), None)
    # The draw's fine digits: its first ones may have chosen an arm.
    if shadow is None or asked.draw * 65_537.0 % 1.0 >= shadow.share:
        return None
    return _followed(config, off, asked, shadow, rules[-1].name)


def _find(rules: Sequence[ModelRule], name: str) -> _Match | None:
    """The rule of a name: an exact one before patterns, of those the first."""
    for rule in rules:
        if rule.name == name and "*" not in name:
            return _Match(rule, "")
    for rule in rules:
        before, star, after = rule.name.partition("*")
        fits = len(name) >= len(before) + len(after)
        if star and fits and name.startswith(before) and name.endswith(after):
            return _Match(rule, name[len(before) : len(name) - len(after)])
    return None


def _narrowed(outer: Selection, inner: Selection, name: str) -> Selection:
    """What the inner one says, and of the outer one what it leaves open."""
    return Selection(
        model=inner.model or name,
        version=inner.version or outer.version,
        labels={**outer.labels, **inner.labels},
    )
