"""Names of models: what clients ask for, and what they get."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

Share = Annotated[float, Meta(ge=0, le=1)]


class Cause(StrEnum):
    """Why a request goes to a fallback."""

    UNAVAILABLE = "unavailable"
    """No replica of the model can be used, or none answers."""
    OVERLOADED = "overloaded"
    """All answer 429, the queue is full, or no turn came within the class' `ttft` (its `max_wait` where it promises none)."""
    TIMEOUT = "timeout"
    ERROR = "error"
    """A replica failed: 5xx, or an answer that is none."""
    CONTEXT = "context"
    """The prompt is too long for the model."""
    REFUSED = "refused"
    """A replica calls the request wrong (4xx)."""


class Selection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and which of its replicas."""

    model: str = ""
    """Name at the replicas, or of another rule; empty: the name of this rule."""
    version: str = ""
    """Only replicas of this version; empty: any."""
    labels: dict[str, str] = {}
    """Only replicas with these labels."""


class Arm(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a split."""

    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Its part of the keys, beside the other arms' weights."""
    canary: bool = False
    """On trial: compared with the other arms, and switched off when it is worse."""

    @property
    def name(self) -> str:
        """Its name in headers and metrics: model@version."""
        labels = ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))
        return "@".join(part for part in (self.model, self.version, labels) if part) or "default"


class Tier(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model for prompts up to some complexity."""

    up_to: Share = 1.0
    """Highest complexity of prompts that it gets; tiers are listed from simple to hard."""


class Fallback(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is tried when the model cannot answer."""

    when: tuple[Cause, ...] = (Cause.UNAVAILABLE, Cause.OVERLOADED, Cause.TIMEOUT, Cause.ERROR)
    """Why: unavailable, overloaded, timeout, error, context, refused."""


class Shadow(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What gets copies of requests. Its answers are thrown away, its failures are counted."""

    share: Share = 1.0
    """Share of requests that are copied."""


class RollbackConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a canary is switched off by itself."""

    window: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 60.0
    """Seconds of answers that are compared."""
    period: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 5.0
    """Seconds between two comparisons."""
    min_samples: Annotated[int, Meta(ge=1)] = 30
    """Answers of the canary, and of the others, within the window before they are compared."""
    error_margin: Share = 0.05
    """By how much the canary's share of errors may be above that of the others."""
    latency_factor: Annotated[float, Meta(gt=1)] = 1.5
    """How many times the others' median and mean time to the first token the canary's may be."""
    breaches: Annotated[int, Meta(ge=1)] = 3
    """Comparisons in a row that must fail; one that is passed starts over."""
    retry_after: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] | None = None
    """Seconds after which a canary that was switched off is tried again; default: when it is configured anew."""


class ModelRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a name means. At most one of `target`, `split` and `tiers`; none of them: the model of that name."""

    name: str
    """What clients ask for. One * stands for any text."""
    target: str = ""
    """Another name: an alias. A * in it is what the * of `name` stood for."""
    split: tuple[Arm, ...] = ()
    """Arms among which keys are divided; a key stays with its arm."""
    tiers: tuple[Tier, ...] = ()
    """Models by complexity of the prompt, from simple to hard."""
    fallbacks: tuple[Fallback, ...] = ()
    """Tried in order."""
    shadow: Shadow | None = None
    """Copies of requests."""
    rollback: RollbackConfig = RollbackConfig()

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        where = f"The rule for '{self.name}'"
        if not self.name or self.name.count("*") > 1 or self.target.count("*") > 1:
            raise ConfigError(f"{where} needs a name, with at most one * in name and target.")
        if "*" in self.target and "*" not in self.name:
            raise ConfigError(f"{where} has a * in its target but none in its name.")
        if sum((bool(self.target), bool(self.split), bool(self.tiers))) > 1:
            raise ConfigError(f"{where} may have one of target, split and tiers.")
        if self.split and not any(arm.weight > 0 and not arm.canary for arm in self.split):
            raise ConfigError(f"{where} needs an arm with a weight that is no canary.")
        if self.rollback != RollbackConfig() and not any(arm.canary for arm in self.split):
            raise ConfigError(
                f"{where} has a rollback and no canary: say `canary: true` at the arm of the split that is on trial.",
                place="rollback",
            )
        if len({arm.name for arm in self.split}) < len(self.split):
            raise ConfigError(f"{where} has two arms of the same model and version.")
        bounds = [tier.up_to for tier in self.tiers]
        if bounds != sorted(set(bounds)) or (bounds and bounds[-1] < 1):
            raise ConfigError(f"{where} needs tiers with rising 'up_to', the last one up to 1.")

    def mentions(self) -> Iterator[str]:
        """Other names that it leads to."""
        selections = (*self.split, *self.tiers, *self.fallbacks)
        yield from (one.model for one in selections if one.model)
        if self.shadow is not None and self.shadow.model:
            yield self.shadow.model
        if self.target:
            yield self.target


class ClassifierConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each feature of a prompt says about its complexity. Each is between 0 and 1.

    The sum of feature times weight, cut to 0..1, is the complexity.
    """

    length: float = 0.20
    """The question itself: 0 up to 50 tokens, 1 from 2,000 on."""
    context: float = 0.10
    """All of the conversation: 0 up to 1,000 tokens, 1 from 32,000 on."""
    code: float = 0.30
    """Code in it."""
    mathematics: float = 0.30
    """Formulas and the words around them."""
    reasoning: float = 0.35
    """Words that ask to prove, compare, plan, explain why."""
    steps: float = 0.20
    """Several demands: lists, steps, questions."""
    structure: float = 0.10
    """Tools, or an answer in a schema."""
    simple: float = -0.20
    """Greetings, thanks, and short questions of fact."""


class ModelsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for names; a name without one means the model of that name."""

    rules: tuple[ModelRule, ...] = ()
    """An exact name comes before one with a *; of those the first."""
    classifier: ClassifierConfig = ClassifierConfig()
    file: str | None = None
    """Where it is kept over a restart which canaries are off; of one gateway only. Without it each is tried again."""

    def __post_init__(self) -> None:
        """Raises ConfigError for two rules of one name, and for names that lead to themselves."""
        rules = {rule.name: rule for rule in self.rules}
        if len(rules) < len(self.rules):
            raise ConfigError("Two rules of models have the same name.")
        done: set[str] = set()
        for name in rules:
            _check_ends(rules, name, (), done)


def _check_ends(
    rules: dict[str, ModelRule], name: str, path: tuple[str, ...], done: set[str]
) -> None:
    if name in path:
        raise ConfigError(f"The rules of models go round: {' -> '.join((*path, name))}.")
    if name not in rules or name in done:
        return
    if len(path) >= 16:
        raise ConfigError(f"The rule for '{path[0]}' leads on more than 16 times.")
    for mentioned in rules[name].mentions():
        # A rule may name the model of its own name: a split by version, a fallback of another version.
        if mentioned != name:
            _check_ends(rules, mentioned, (*path, name), done)
    done.add(name)
