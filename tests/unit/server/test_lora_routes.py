"""Adapters by request: only from below the root, in vLLM's words, listed at once."""

import asyncio

import pytest
from tests.support.in_process import InProcess

from headrace.core.errors import ConfigError, NotFoundError, PermissionDeniedError
from headrace.server.lora_root import LoraRoot

ADDED = "Success: LoRA adapter 'sql' added successfully."
REMOVED = "Success: LoRA adapter 'sql' removed successfully."


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "adapters"
    (root / "sql").mkdir(parents=True)
    (root / "deep" / "tone").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "adapter_config.json").write_text("{}")
    (root / "link").symlink_to(outside)
    (root / "inner").symlink_to(root / "sql")
    (root / "circle").symlink_to(root / "circle")
    (root / "config").mkdir()
    (root / "config" / "adapter_config.json").symlink_to(outside / "adapter_config.json")
    (root / "file").write_text("")
    return root


@pytest.fixture
async def app(tmp_path, root):
    async with InProcess(tmp_path, lora_root=str(root)) as running:
        yield running


async def load(app, path="sql", name="sql", **body):
    body |= {"lora_name": name, "lora_path": path}
    return await app.http.post("/v1/load_lora_adapter", json=body)


async def unload(app, name="sql", **body):
    return await app.http.post("/v1/unload_lora_adapter", json={"lora_name": name, **body})


async def names(app):
    return [card["id"] for card in (await app.http.get("/v1/models")).json()["data"]]


async def test_an_adapter_comes_and_goes(app, root):
    answer = await load(app)
    assert (answer.status_code, answer.text) == (200, ADDED)
    assert answer.headers["content-type"].startswith("text/plain")
    assert await names(app) == ["fake", "sql"]
    card = (await app.http.get("/v1/models/sql")).json()
    assert (card["parent"], card["root"]) == ("fake", str(root / "sql"))
    texts = {}
    for model in ("fake", "sql"):
        ask = {"model": model, "prompt": "hi", "max_tokens": 4, "seed": 1}
        texts[model] = (await app.http.post("/v1/completions", json=ask)).json()
        assert texts[model]["model"] == model
    assert texts["fake"]["choices"][0]["text"] != texts["sql"]["choices"][0]["text"]
    again = await load(app, "deep/tone")
    assert again.status_code == 400
    assert "load" in again.json()["error"]["message"]
    assert (await load(app, "deep/tone", load_inplace=True)).text == ADDED
    answer = await unload(app, lora_int_id=1)
    assert (answer.status_code, answer.text) == (200, REMOVED)
    assert await names(app) == ["fake"]
    ask = {"model": "sql", "prompt": "hi"}
    assert (await app.http.post("/v1/completions", json=ask)).status_code == 404
    answer = await unload(app)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "No adapter is named 'sql'."


async def test_a_request_that_was_prepared_before_is_not_found(app):
    assert (await load(app)).status_code == 200
    before = app.model.preparer
    assert (await unload(app)).status_code == 200
    app.model.preparer = before
    app.engine.info = before.info
    answer = await app.http.post("/v1/completions", json={"model": "sql", "prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize(
    "path",
    ["..", "../outside", "sql/../../outside", "link", "link/.", "/", "/etc", "circle", "config"],
)
async def test_nothing_is_read_outside_of_the_root(app, path):
    answer = await load(app, path)
    assert answer.status_code == 403
    message = answer.json()["error"]["message"]
    assert message == "Adapters are only loaded from below --lora-root."


async def test_other_requests_that_are_wrong(app):
    for body, status, param in (
        ({"lora_path": "sql"}, 400, "lora_name"),
        ({"lora_name": "sql"}, 400, "lora_path"),
        ({"lora_name": "", "lora_path": "sql"}, 400, "lora_name"),
        ({"lora_name": "sql", "lora_path": ""}, 400, "lora_path"),
        ({"lora_name": "x" * 257, "lora_path": "sql"}, 400, "lora_name"),
        ({"lora_name": "a\nb", "lora_path": "sql"}, 400, "lora_name"),
        ({"lora_name": "sql", "lora_path": "sql\0"}, 400, "lora_path"),
        ({"lora_name": "sql", "lora_path": "x" * 4000}, 404, None),
        ({"lora_name": "sql", "lora_path": "none"}, 404, None),
        ({"lora_name": "sql", "lora_path": "file"}, 404, None),
        ({"lora_name": 1, "lora_path": "sql"}, 400, "lora_name"),
        (
            {"lora_name": "sql", "lora_path": "sql", "is_3d_lora_weight": True},
            400,
            "is_3d_lora_weight",
        ),
    ):
        answer = await app.http.post("/v1/load_lora_adapter", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), body
    assert await names(app) == ["fake"]


async def test_links_within_the_root_and_absolute_paths_are_good(app, root):
    assert (await load(app, "inner", "a")).status_code == 200
    assert (await load(app, str(root / "deep" / "tone"), "b")).status_code == 200
    assert await names(app) == ["fake", "a", "b"]


async def test_many_at_once(app):
    answers = await asyncio.gather(*(load(app, name="one") for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + 7 * [400]
    answers = await asyncio.gather(*(unload(app, "one") for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + 7 * [404]


async def test_without_a_root_there_is_nothing_to_load(tmp_path):
    async with InProcess(tmp_path) as app:
        for answer in (await load(app), await unload(app)):
            assert answer.status_code == 404
            assert "--lora-root" in answer.json()["error"]["message"]


def test_a_root_must_be_a_directory(root):
    for wrong in ("file", "none", "circle"):
        with pytest.raises(ConfigError, match="--lora-root"):
            LoraRoot(str(root / wrong))
    with pytest.raises(PermissionDeniedError):
        LoraRoot(str(root / "sql")).find("../deep")
    with pytest.raises(NotFoundError):
        LoraRoot(str(root / "inner")).find("deep")
