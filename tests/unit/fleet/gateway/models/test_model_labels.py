"""Labels of metrics by model: what is served or configured, whatever clients ask for."""

from headrace.config.fleet.models import Fallback, ModelRule, ModelsConfig
from headrace.fleet.gateway.models.labels import ModelLabels, configured_names


def test_only_known_names_are_labels():
    served = {"m"}
    labels = ModelLabels(lambda: served)
    assert labels.label("m") == "m"
    assert labels.label("m@v1") == "m@v1"
    assert {labels.label(f"x{number}") for number in range(500)} == {"other"}
    assert labels.label("mm@v1") == "other"
    served.add("later")
    assert labels.label("later") == "later"
    served.clear()
    assert labels.label("later") == "later"  # its series go on


def test_their_number_is_bounded():
    names = [f"m{number}" for number in range(20)]
    labels = ModelLabels(lambda: names, max_names=10)
    assert [labels.label(name) for name in names] == names[:10] + ["other"] * 10


def test_what_rules_name_is_known():
    config = ModelsConfig(
        rules=(
            ModelRule(name="fast", target="small", fallbacks=(Fallback(model="big"),)),
            ModelRule(name="gpt-*", target="our-*"),
        )
    )
    assert set(configured_names(config)) == {"fast", "small", "big"}
