"""`fleet.yaml`: what it may hold, and one clear sentence for what it may not."""

from pathlib import Path

import pytest

from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.replicas import Dialect
from headrace.core.errors import ConfigError


def read(tmp_path: Path, text: str):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return read_fleet(file)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is empty"):
        read(tmp_path, "")


def test_what_is_not_said_has_its_default(tmp_path):
    config = read(tmp_path, "gateway: {}")
    assert config.replicas == ()
    assert config.gateway.port == 8080


def test_units_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICA_KEY", "s3cret")
    config = read(
        tmp_path,
        """
gateway:
  port: 9000
  max_body_bytes: 2MiB
  timeouts: {connect: 250ms, total: 10m, first_token: 7}
replicas:
  - url: "http://${HOST_NAME:-localhost}:8000"
    dialect: vllm
    api_key: "${REPLICA_KEY}"
    labels: {zone: "${ZONE:-a}"}
""",
    )
    timeouts = config.gateway.timeouts
    assert (timeouts.connect, timeouts.total, timeouts.first_token) == (0.25, 600.0, 7.0)
    assert config.gateway.max_body_bytes == 2 * 2**20
    (replica,) = config.replicas
    assert replica.url == "http://localhost:8000"
    assert replica.dialect is Dialect.VLLM
    assert replica.labels == {"zone": "a"}
    assert str(replica.api_key) == "s3cret"
    assert "s3cret" not in repr(config)


TOOLS = """tools:
  servers: [{name: files, url: 'http://a/mcp'}]
  http: [{name: weather, description: d, url: 'http://b'}]
"""

BAD = {
    "unknown field": ("gateway: {prot: 1}", "prot"),
    "unknown table": ("gate: {}", "gate"),
    "near a setting": ("gateway: {prot: 1}", "the nearest is 'port'."),
    "near a table": ("gatway: {}", "'gatway' in"),
    "words that are known": ("routing: {policy: best}", "none of sticky, "),
    "unset variable in a list": (
        "accounts: {keys: [{name: a, key: b}, {name: c, key: '${NO_SUCH_VARIABLE_HERE}'}]}",
        "'accounts.keys[1].key'",
    ),
    "priority of a tenant": ("accounts: {tenants: [{name: a, priority: nope}]}", "'nope'"),
    "priority of a key": ("accounts: {keys: [{name: a, key: b, priority: nope}]}", "'nope'"),
    "where YAML ends": ("replicas: [", "(line 1, column 12)"),
    "wrong type": ("gateway: {port: many}", "gateway.port"),
    "out of bounds": ("gateway: {port: 70000}", "gateway.port"),
    "words of people": ("gateway: {port: x}", "'gateway.port' in"),
    "a number as a list": (
        "name: a\ngateway:\n  port:\n    - 1\n",
        "fleet.yaml, line 3: expected a whole number, got a list.",
    ),
    "text for a number": (
        "pools:\n- name: a\n  model: m\n- name: b\n  model: m\n  min_replicas: few\n",
        "'pools[1].min_replicas' in",
    ),
    "line of an entry": (
        "pools:\n- name: a\n  model: m\n- name: b\n  model: m\n  min_replicas: few\n",
        "line 6: expected a whole number, got a string.",
    ),
    "something missing": (
        "pools:\n- {name: a, model: m}\n- model: m\n",
        "line 3: it is missing.",
    ),
    "name of what is missing": ("pools: [{model: m}]", "'pools[0].name' in"),
    "key of a table": (
        "replicas:\n- url: http://a\n  labels:\n    zone: 5\n",
        "'replicas[0].labels' in",
    ),
    "either of several types": (
        "pools: [{name: a, model: m, serve: {x: {}}}]",
        "expected true or false or a whole number or a number or a string, got a table.",
    ),
    "line of an address": (
        "replicas:\n- url: http://a\n- id: b\n  url: a:8000\n",
        "'replicas[1].url' in {file}, line 4: The replica's url must be",
    ),
    "line of a webhook's address": (
        "alerts:\n  webhooks:\n  - {url: 'http://a'}\n  - url: a\n",
        "'alerts.webhooks[1].url' in {file}, line 4: The url of a webhook",
    ),
    "line of a step's address": (
        "pipelines:\n  items:\n  - name: p\n    steps:\n    - name: s\n      http: {url: a}\n",
        "'pipelines.items[0].steps[0].http.url' in {file}, line 6: ",
    ),
    "line of a key": (
        "accounts:\n  keys:\n  - {name: a, key: b}\n  - name: c\n    key: 'sha256:12'\n",
        "'accounts.keys[1].key' in {file}, line 5: ",
    ),
    "line of a tenant that is there twice": (
        "accounts:\n  tenants:\n  - name: a\n  - name: a\n",
        "'accounts.tenants[1].name' in {file}, line 4: ",
    ),
    "line of a tenant's class": (
        "accounts:\n  tenants:\n  - name: a\n    priority: nope\n",
        "'accounts.tenants[0].priority' in {file}, line 4: ",
    ),
    "line of a key's tenant": (
        "accounts:\n  tenants: [{name: acme}]\n  keys:\n  - {name: a, key: b}\n  - name: c\n    key: d\n    tenant: acm\n",
        "'accounts.keys[1].tenant' in {file}, line 7: There is no tenant 'acm'; the nearest is 'acme'.",
    ),
    "line of a grant's tool": (
        TOOLS + "  grants:\n  - tools: [weather, wether]\n    tenants: [ops]\n",
        "'tools.grants[0].tools[1]' in {file}, line 5: There is no tool 'wether'; the nearest is 'weather'.",
    ),
    "a server's tool without a name": (
        TOOLS + "  grants: [{tools: [files__]}]\n",
        "There is no tool 'files__'; the nearest is 'files__*'.",
    ),
    "line of an offer's tool": (
        TOOLS + "  offers:\n  - models: ['*']\n    tools: [fils__*]\n",
        "'tools.offers[0].tools[0]' in {file}, line 6: There is no tool 'fils__*'; the nearest is 'files__*'.",
    ),
    "line of a grant's tenant": (
        TOOLS
        + "  grants:\n  - {tools: ['*'], tenants: [acmee]}\naccounts: {tenants: [{name: acme}]}\n",
        "'tools.grants[0].tenants[0]' in {file}, line 5: There is no tenant 'acmee'; the nearest is 'acme'.",
    ),
    "line of a rollback of nothing": (
        "models:\n  rules:\n  - name: m\n    split: [{version: a}, {version: b}]\n    rollback: {min_samples: 3}\n",
        "'models.rules[0].rollback' in {file}, line 5: The rule for 'm' has a rollback and no canary",
    ),
    "line of a tenant's budgets": (
        "accounts:\n  tenants:\n  - name: a\n    limits:\n      budgets: [{amount: 1}, {amount: 2}]\n",
        "'accounts.tenants[0].limits.budgets' in {file}, line 5: ",
    ),
    "line of an objective without a threshold": (
        "slos:\n- {name: a, measure: availability}\n- name: b\n  measure: ttft\n",
        "'slos[1].threshold' in {file}, line 3: The objective b: ttft needs a threshold.",
    ),
    "line of an objective's window": (
        "slos:\n- name: b\n  measure: availability\n  window: 1s\n",
        "'slos[0].window' in {file}, line 4: ",
    ),
    "line of an objective's class": (
        "slos:\n- name: b\n  measure: availability\n  priority: nope\n",
        "'slos[0].priority' in {file}, line 4: ",
    ),
    "line of the second of a name": (
        "pools:\n- {name: a, model: m}\n- {name: a, model: m}\n",
        "'pools[1].name' in {file}, line 3: Two pools have the name a.",
    ),
    "line of a pool that there is not": (
        "autoscaler:\n  pools:\n    other: {}\n",
        "'autoscaler.pools.other' in {file}, line 3: ",
    ),
    "line of an optional table": (
        "autoscaler:\n  scaling:\n    schedule:\n    - {start: '8', end: '9:00', replicas: 1}\n",
        "'autoscaler.scaling.schedule[0]' in {file}, line 4: ",
    ),
    "negative": ("gateway: {timeouts: {connect: -1s}}", "connect"),
    "no duration": ("gateway: {timeouts: {connect: soon}}", "gateway.timeouts.connect"),
    "no size": ("gateway: {max_body_bytes: big}", "big"),
    "unknown word": ("routing: {policy: best}", "best"),
    "unknown dialect": ("replicas: [{url: 'http://a', dialect: klingon}]", "klingon"),
    "no url": ("replicas: [{id: a}]", "url"),
    "no list": ("replicas: {a: b}", "replicas"),
    "no table": ("replicas: [a]", "replicas"),
    "two of a name": ("replicas: [{url: 'http://a:1'}, {url: 'http://a:1'}]", "a:1"),
    "slash in an id": ("replicas: [{url: 'http://a', id: x/y}]", "'x/y'"),
    "host without ASCII": ("replicas: [{url: 'http://\u732b'}]", "id"),
    "two of an id": ("replicas: [{url: 'http://a', id: x}, {url: 'http://b', id: x}]", "'x'"),
    "unset variable": ("replicas: [{url: '${NO_SUCH_VARIABLE_HERE}'}]", "NO_SUCH_VARIABLE_HERE"),
    "not YAML": ("replicas: [", "YAML"),
    "a text": ("just words", "line 1: expected a table, got a string."),
    "a list": ("- 1", "expected a table, got a list."),
    "binary": ("\x00\x01", "YAML"),
    "a tag": ("!!python/object/apply:os.system ['true']", "YAML"),
}


@pytest.mark.parametrize(("text", "word"), BAD.values(), ids=BAD)
def test_one_sentence_says_where_the_fault_is(text, word, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert word.replace("{file}", str(tmp_path / "fleet.yaml")) in message
    assert "fleet.yaml" in message
    assert message.endswith(".")
    assert "Traceback" not in message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_fleet(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_fleet(tmp_path)


GOOD = {
    "patterns of tools": TOOLS
    + "  grants: [{tools: ['*', 'w*', 'files__read', 'fil*', 'files__r*', 'weathe?', 'files*d']}]\n",
    "a tenant that only keys have": "accounts: {keys: [{name: a, key: b, tenant: c}]}",
    "a key that is its own tenant": "accounts: {tenants: [{name: c}], keys: [{name: a, key: b, tenant: a}]}",
    "grants to whoever has a key": TOOLS
    + "  grants: [{tools: [weather], tenants: [a, t, anonymous]}]\n"
    + "accounts: {tenants: [{name: t}], keys: [{name: a, key: b}]}",
    "a grant to a tenant that may be made": TOOLS
    + "  grants: [{tools: [weather], tenants: [later]}]\n"
    + "accounts: {tenants: [{name: t}], directory: /nowhere}",
    "a rollback of a canary": (
        "models: {rules: [{name: m, split: [{version: a}, {version: b, canary: true}], rollback: {window: 3s}}]}"
    ),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_names_that_mean_something_are_good(text, tmp_path):
    read(tmp_path, text)


@pytest.mark.parametrize("word", ["on", "off", "shadow", "'on'"])
def test_on_and_off_are_words_where_a_setting_has_them(word, tmp_path):
    config = read(tmp_path, f"cache: {{enabled: on, semantic: {{mode: {word}, url: 'http://a'}}}}")
    assert config.cache.semantic.mode == word.strip("'")
    assert config.cache.enabled is True
    with pytest.raises(ConfigError, match=r"routing\.policy"):
        read(tmp_path, "routing: {policy: on}")
