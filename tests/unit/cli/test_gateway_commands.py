"""`headrace gateway --check`, and where the options of `headrace fleet` may stand."""

import pytest

from headrace.cli import fleet, gateway
from headrace.cli.admin_client import AdminClient
from headrace.core.errors import ConfigError, UnavailableError

NOWHERE = ("--gateway", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "argv",
    [
        ("usage", *NOWHERE),
        (*NOWHERE, "usage"),
        ("--json", *NOWHERE, "keys", "list"),
        ("--gateway=http://127.0.0.1:1", "keys"),
        (*NOWHERE, "status"),
        NOWHERE,
    ],
)
def test_options_may_come_before_the_action(argv):
    with pytest.raises(UnavailableError, match=r"no gateway at http://127\.0\.0\.1:1"):
        fleet.main(argv)


def test_check_refuses_what_the_start_would(tmp_path, capsys):
    file = tmp_path / "fleet.yaml"
    file.write_text("replicas: [{url: 'http://a'}]")
    assert gateway.main([str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file} is good: 1 replica.\n"
    file.write_text("accounts: {keys: [{name: a, key: same}, {name: b, key: same}]}")
    with pytest.raises(ConfigError, match="'b' and 'a' are one"):
        gateway.main([str(file), "--check"])


def test_a_replica_is_added_with_all_that_was_said_of_it(monkeypatch, capsys):
    sent = []

    def call(_client, *request):
        sent.append(request)
        return {"message": "Replica big was added."}

    monkeypatch.setattr(AdminClient, "call", call)
    told = ("--id", "big", "--dialect", "vllm", "--peer-token", "secret", "--api-key", "k")
    assert fleet.main(["add", "http://10.0.0.7:8000", *told]) == 0
    spec = {"url": "http://10.0.0.7:8000", "id": "big", "dialect": "vllm"}
    assert sent == [("POST", "/replicas", {**spec, "peer_token": "secret", "api_key": "k"})]
    assert capsys.readouterr().out == "Replica big was added.\n"


@pytest.mark.parametrize("has_pools", [True, False])
def test_the_list_of_replicas_names_sizes_that_were_set(has_pools, monkeypatch, capsys):
    def call(_client, _method, path, _body=None):
        if path == "/replicas":
            return {"replicas": [{"id": "a", "standing": "unready", "reason": "connect: refused"}]}
        if not has_pools:
            raise ConfigError("no pools in its file")
        return {"pools": [{"name": "chat", "override": 2}, {"name": "steady", "override": None}]}

    monkeypatch.setattr(AdminClient, "call", call)
    assert fleet.main([]) == 0
    said = capsys.readouterr().out
    assert ("chat: set to 2 replicas by an operator" in said) is has_pools
    assert "steady" not in said
    assert said.splitlines()[1].endswith("  connect: refused")
