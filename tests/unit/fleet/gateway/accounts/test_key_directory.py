import hashlib

import pytest
from tests.support.accounts_of import (
    TWO_CLASSES,
    account_of,
    accounts_config,
    accounts_over,
    flow_config,
    key,
    scope_with,
)
from tests.support.fake_clock import FakeClock

from headrace.core.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from headrace.fleet.gateway.accounts.account import NewKey
from headrace.fleet.gateway.accounts.database import Database
from headrace.fleet.gateway.accounts.journal import Journal
from headrace.fleet.gateway.accounts.local_store import LocalStore


@pytest.fixture
def clock():
    return FakeClock()


def open_store(path, clock):
    database = Database(str(path))
    journal = Journal(database)
    return LocalStore.opened(clock, journal, database.connection, charge_lost=True), journal


def test_without_keys_everybody_is_anonymous(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock)
    for headers in ({}, {"authorization": "Bearer anything"}, {"x_api_key": "anything"}):
        account = accounts.authenticate(scope_with(**headers))
        assert (account.key, account.tenant, account.priority) == (
            "anonymous",
            "anonymous",
            "standard",
        )


def test_with_a_key_nobody_gets_in_without_one(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock, keys=[key("a", tenant="acme")])
    assert account_of(accounts, "a").tenant == "acme"
    assert accounts.authenticate(scope_with(x_api_key="secret-a")).key == "a"
    for headers in ({}, {"authorization": "Bearer secret-b"}, {"authorization": "Basic secret-a"}):
        with pytest.raises(AuthenticationError):
            accounts.authenticate(scope_with(**headers))


def test_required_keeps_everybody_out_until_there_is_a_key(clock) -> None:
    with pytest.raises(AuthenticationError):
        accounts_over(LocalStore(clock), clock, required=True).authenticate(scope_with())


def test_a_key_may_be_given_as_its_hash(clock) -> None:
    digest = hashlib.sha256(b"secret-a").hexdigest()
    accounts = accounts_over(
        LocalStore(clock), clock, keys=[{"name": "a", "key": f"sha256:{digest}"}]
    )
    assert account_of(accounts, "a").key == "a"


def test_tenant_and_class_come_from_the_key_and_never_from_the_client(clock) -> None:
    accounts = accounts_over(
        LocalStore(clock),
        clock,
        flow=TWO_CLASSES,
        keys=[key("a", tenant="acme"), key("b", tenant="acme", priority="interactive"), key("c")],
        tenants=[{"name": "acme", "priority": "batch", "weight": 3.0}],
    )
    spoof = {"x_tenant": "rich", "x_priority": "interactive", "authorization": "Bearer secret-a"}
    account = accounts.authenticate(scope_with(**spoof))
    assert (account.tenant, account.priority, account.weight) == ("acme", "batch", 3.0)
    assert account_of(accounts, "b").priority == "interactive"
    assert account_of(accounts, "c").tenant == "c"
    assert account_of(accounts, "c").priority == "interactive"


def test_a_key_is_good_for_its_models_only(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock, keys=[key("a", models=["small", "qwen*"])])
    account = account_of(accounts, "a")
    account.check_model("small")
    account.check_model("qwen3-8b")
    with pytest.raises(PermissionDeniedError, match="'a' may not use the model 'large'"):
        account.check_model("large")


async def test_keys_are_created_kept_and_revoked(clock, tmp_path) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, flow=TWO_CLASSES, tenants=[{"name": "acme"}])
    created = await accounts.create_key(
        NewKey(name="new", tenant="acme", priority="batch", models=("small",), expires_in=100.0)
    )
    assert created.key.startswith("hr-")
    assert created.key not in (tmp_path / "accounts.db").read_bytes().decode("latin-1")
    with pytest.raises(AuthenticationError):  # the first key closes the gateway
        accounts.authenticate(scope_with())
    journal.close()

    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, flow=TWO_CLASSES)
    await accounts.load()
    account = accounts.authenticate(scope_with(authorization=f"bearer {created.key}"))
    assert (account.tenant, account.priority, account.models) == ("acme", "batch", ("small",))
    assert [info.name for info in accounts.list_keys()] == ["new"]
    info = await accounts.revoke_key("new")
    assert info.revoked == clock.wall()
    assert await accounts.revoke_key("new") == info
    with pytest.raises(AuthenticationError):
        accounts.authenticate(scope_with(authorization=f"Bearer {created.key}"))
    journal.close()

    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock)
    await accounts.load()
    with pytest.raises(AuthenticationError):
        accounts.authenticate(scope_with(authorization=f"Bearer {created.key}"))
    with pytest.raises(AuthenticationError):  # a gateway whose last key was revoked does not open
        accounts.authenticate(scope_with())
    journal.close()


async def test_an_expired_key_is_good_no_more(clock, tmp_path) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock)
    created = await accounts.create_key(NewKey(name="new", expires_in=100.0))
    accounts.authenticate(scope_with(x_api_key=created.key))
    clock.advance(100.0)
    with pytest.raises(AuthenticationError):
        accounts.authenticate(scope_with(x_api_key=created.key))
    journal.close()


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (NewKey(name="no spaces"), "name"),
        (NewKey(name=""), "name"),
        (NewKey(name="taken"), "name"),
        (NewKey(name="anonymous"), "name"),
        (NewKey(name="n", tenant="../x"), "tenant"),
        (NewKey(name="n", tenant="nope"), "tenant"),
        (NewKey(name="n", priority="first"), "priority"),
        (NewKey(name="n", expires_in=-1.0), "expires_in"),
        (NewKey(name="n", expires_in=float("nan")), "expires_in"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_by_field(clock, tmp_path, wanted, param) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, keys=[key("taken")])
    with pytest.raises(BadRequestError) as caught:
        await accounts.create_key(wanted)
    assert caught.value.param == param
    journal.close()


async def test_a_created_key_is_of_a_tenant_that_there_is(clock, tmp_path) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(
        store,
        clock,
        keys=[key("a"), key("b", tenant="shop")],
        tenants=[{"name": "acme"}, {"name": "shop"}],
    )
    for number, tenant in enumerate(("acme", "a", "shop", "", "n4", "n3")):
        made = await accounts.create_key(NewKey(name=f"n{number}", tenant=tenant))
        assert made.info.tenant == (tenant or "n3")
    with pytest.raises(BadRequestError, match="'tenant': there is no 'acm'; one of acme, shop"):
        await accounts.create_key(NewKey(name="n", tenant="acm"))
    assert accounts.list_keys()[-1].name == "n5"
    journal.close()


async def test_keys_of_the_file_are_not_revoked_here(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock, keys=[key("a")])
    with pytest.raises(BadRequestError, match="fleet's file"):
        await accounts.revoke_key("a")
    with pytest.raises(NotFoundError):
        await accounts.revoke_key("b")


async def test_without_a_directory_no_key_can_be_kept(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock)
    with pytest.raises(ConfigError, match=r"accounts\.directory"):
        await accounts.create_key(NewKey(name="new"))
    accounts.authenticate(scope_with())


def test_a_bad_reload_changes_nothing(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock, keys=[key("a")])
    bad = accounts_config(keys=[key("b", priority="gold")])
    with pytest.raises(ConfigError, match="no class"):
        accounts.configure(bad, flow_config())
    assert account_of(accounts, "a").key == "a"
    accounts.configure(accounts_config(keys=[key("b")]), flow_config())
    assert account_of(accounts, "b").key == "b"
    with pytest.raises(AuthenticationError):
        account_of(accounts, "a")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keys": [key("a"), key("a")]}, "'a' twice"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "'a' twice"),
        ({"keys": [{"name": "a", "key": "sha256:12"}]}, "64 hexadecimal"),
        ({"keys": [{"name": "a", "key": "has space"}]}, "printable"),
        ({"tenants": [{"name": "a", "limits": {"budgets": [{"amount": 1}]}}]}, "directory"),
        (
            {"anonymous": {"budgets": [{"amount": 1, "per": "day"}, {"amount": 2, "per": "day"}]}},
            "one period",
        ),
    ],
)
def test_tables_that_contradict_each_other_are_refused(fields, words) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        accounts_config(**fields)


def test_the_same_key_twice_is_refused(clock) -> None:
    keys = [{"name": "a", "key": "one-key"}, {"name": "b", "key": "one-key"}]
    with pytest.raises(ConfigError, match="are one"):
        accounts_over(LocalStore(clock), clock, keys=keys)


async def test_a_revoked_key_stays_so_while_the_store_does_not_know(clock, tmp_path) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, directory=str(tmp_path))
    made = await accounts.create_key(NewKey(name="k"))
    before = await store.keys()
    await accounts.revoke_key("k")
    accounts._directory.load(before)  # read before it was written
    assert accounts._directory.find(made.key) is None
    journal.close()


async def test_a_key_that_could_not_be_written_is_not_there(clock, tmp_path, monkeypatch) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, directory=str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(journal, "flush", lambda: False)
        with pytest.raises(UnavailableError):
            await accounts.create_key(NewKey(name="k"))
    await accounts.load()
    assert accounts.list_keys() == ()
    await accounts.create_key(NewKey(name="k"))
    journal.close()


async def test_a_key_whose_end_the_store_did_not_learn_of_is_revoked_again(
    clock, tmp_path, monkeypatch
) -> None:
    store, journal = open_store(tmp_path, clock)
    accounts = accounts_over(store, clock, directory=str(tmp_path))
    made = await accounts.create_key(NewKey(name="k"))

    async def away(*_, **__):
        raise UnavailableError("The store is away.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "put_key", away)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await accounts.revoke_key("k")
    assert accounts._directory.find(made.key) is None
    info = await accounts.revoke_key("k")
    assert info.revoked is not None
    assert [known.revoked for known in await store.keys()] == [info.revoked]
    journal.close()
