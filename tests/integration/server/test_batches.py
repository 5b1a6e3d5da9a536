"""Files and batches over the whole application: every request answered once, in order of the file, by its owner only."""

import asyncio
import json

import pytest
from tests.support.batches import CHAT, BatchClient, jsonl, line
from tests.support.in_process import InProcess
from tests.support.patience import PATIENCE


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


DONE = ("completed", "failed", "cancelled", "expired")


def app_of(tmp_path, **server):
    batches = {"batch_dir": str(tmp_path / "batches"), **server.pop("batches", {})}
    return InProcess(tmp_path, batches=batches, **server)


async def test_every_line_is_answered_as_the_route_answers(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        lines = [line(f"line {n}", seed=n) for n in range(150)]
        lines[70]["body"]["temperature"] = -1
        lines[90]["body"]["model"] = "nobody's"
        batch = await client.begin(jsonl(*lines), metadata={"who": "me"})
        assert batch["object"] == "batch"
        assert batch["metadata"] == {"who": "me"}
        batch = await client.until(batch["id"], *DONE)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 150, "completed": 148, "failed": 2}
        output, errors = await client.output(batch), await client.errors(batch)
        good = [item for n, item in enumerate(lines) if n not in (70, 90)]
        assert [item["custom_id"] for item in output] == [item["custom_id"] for item in good]
        for item, asked in list(zip(output, good, strict=True))[::20]:
            direct = (await app.http.post(CHAT, json=asked["body"])).json()
            assert item["response"]["body"]["choices"] == direct["choices"]
        assert {item["response"]["status_code"] for item in output} == {200}
        assert len({item["id"] for item in output + errors}) == 150
        assert [(item["custom_id"], item["response"]["status_code"]) for item in errors] == [
            ("line 70", 400),
            ("line 90", 404),
        ]
        assert errors[0]["response"]["body"]["error"]["param"] == "temperature"
        assert app.replica.admission.num_background == 0
        assert app.replica.bodies.num_bytes == 0


async def test_text_completions_are_batched_too(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        url = "/v1/completions"
        content = jsonl(line("a", url, prompt="x", max_tokens=3))
        batch = await client.begin(content, endpoint=url)
        batch = await client.until(batch["id"], *DONE)
        (item,) = await client.output(batch)
        assert item["response"]["body"]["object"] == "text_completion"
        assert batch["error_file_id"] is None


async def test_a_file_with_faults_fails_the_batch_before_anything_runs(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        batch = await client.begin(jsonl(line("a"), line("a"), {"custom_id": "b"}))
        batch = await client.until(batch["id"], *DONE)
        assert batch["status"] == "failed"
        assert [(fault["line"], fault["code"]) for fault in batch["errors"]["data"]] == [
            (2, "duplicate_custom_id"),
            (3, "missing_required_parameter"),
        ]
        assert batch["output_file_id"] is None
        assert batch["failed_at"]


async def test_what_cannot_begin_is_said(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        file_id = (await client.upload(jsonl(line("a")))).json()["id"]
        for fields, status, param in [
            ({"endpoint": "/v1/none"}, 400, "endpoint"),
            ({"endpoint": "/v1/batches"}, 400, "endpoint"),
            ({"completion_window": "soon"}, 400, "completion_window"),
            ({"completion_window": "31d"}, 400, "completion_window"),
            ({"input_file_id": "file-none"}, 404, None),
            ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
            ({"output_expires_after": {"seconds": 1}}, 400, "output_expires_after.seconds"),
        ]:
            answer = await client.create(**{"file_id": file_id, **fields})
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["param"] == param
        assert (await client.upload(b"x", purpose="vision")).json()["error"]["param"] == "purpose"
        assert (await client.get("/v1/batches"))["data"] == []


async def test_one_that_is_cancelled_keeps_what_it_has(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        lines = [line("short"), *(line(f"long {n}", max_tokens=1900) for n in range(40))]
        batch = await client.begin(jsonl(*lines))
        while (await client.get(f"/v1/batches/{batch['id']}"))["request_counts"]["completed"] == 0:
            pass
        app.engine.is_held = True
        answer = await app.http.post(f"/v1/batches/{batch['id']}/cancel")
        assert answer.json()["status"] in ("cancelling", "cancelled")
        batch = await client.until(batch["id"], *DONE)
        assert batch["status"] == "cancelled"
        output, errors = await client.output(batch), await client.errors(batch)
        assert sorted(item["custom_id"] for item in output + errors) == sorted(
            item["custom_id"] for item in lines
        )
        assert output[0]["custom_id"] == "short"
        assert {item["error"]["code"] for item in errors} == {"batch_cancelled"}
        assert app.engine.num_open == 0
        again = (await app.http.post(f"/v1/batches/{batch['id']}/cancel")).json()
        assert again == batch


async def test_one_whose_time_is_over_expires(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        app.engine.is_held = True
        batch = await client.begin(jsonl(line("a"), line("b")), completion_window="1s")
        batch = await client.until(batch["id"], *DONE)
        assert batch["status"] == "expired"
        assert [item["error"]["code"] for item in await client.errors(batch)] == [
            "batch_expired"
        ] * 2
        assert app.engine.num_open == 0


async def test_those_who_wait_get_the_places_of_batches(tmp_path):
    async with app_of(tmp_path) as app:
        client, submitted = BatchClient(app.http), []
        submit = app.engine.submit

        def noting(*requests):
            submitted.extend(requests)
            return submit(*requests)

        app.engine.submit = noting
        batch = await client.begin(jsonl(*[line(f"l{n}", max_tokens=1900) for n in range(12)]))
        await until(lambda: app.replica.admission.num_background >= 6)
        assert app.replica.admission.num_background == 6  # of 8 places, 2 stay free
        assert app.replica.admission.num_open == 0
        app.engine.is_held = True
        body = {"prompt": "x", "max_tokens": 20}
        urgent = [
            asyncio.create_task(app.http.post("/v1/completions", json=body)) for _ in range(7)
        ]
        await until(lambda: app.replica.admission.num_background <= 1)
        assert app.engine.num_open <= 8
        app.engine.is_held = False
        assert [(await task).status_code for task in urgent] == [200] * 7
        batch = await client.until(batch["id"], *DONE)
        assert batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        assert len(await client.output(batch)) == 12
        waited_for = {r.priority for r in submitted if r.params.max_tokens == 20}
        assert waited_for == {0}
        assert min(r.priority for r in submitted if r.params.max_tokens == 1900) > 2**31


async def test_keys_see_their_own_only(tmp_path):
    async with app_of(tmp_path, security={"api_keys": "a:sk-1,b:sk-2"}) as app:
        alice, bob = BatchClient(app.http, "sk-1"), BatchClient(app.http, "sk-2")
        batch = await alice.begin(jsonl(line("x")))
        batch = await alice.until(batch["id"], *DONE)
        assert batch["status"] == "completed"
        ids = (batch["input_file_id"], batch["output_file_id"])
        for path in [f"/v1/batches/{batch['id']}", *(f"/v1/files/{i}" for i in ids)]:
            assert (await app.http.get(path, headers=bob.headers)).status_code == 404
        for call in [
            ("POST", f"/v1/batches/{batch['id']}/cancel"),
            ("DELETE", f"/v1/files/{ids[0]}"),
        ]:
            assert (await app.http.request(*call, headers=bob.headers)).status_code == 404
        assert (
            await app.http.get(f"/v1/files/{ids[1]}/content", headers=bob.headers)
        ).status_code == 404
        assert (await bob.create(ids[0])).status_code == 404
        assert (await bob.get("/v1/files"))["data"] == (await bob.get("/v1/batches"))["data"] == []
        assert len((await alice.get("/v1/files"))["data"]) == 2


async def test_a_key_that_is_no_longer_good_ends_its_batches(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a:sk-1\nb:sk-2\n")
    async with app_of(tmp_path, security={"api_key_file": str(keys)}) as app:
        app.engine.is_held = True
        client = BatchClient(app.http, "sk-1")
        batch = await client.begin(jsonl(line("x")))
        await client.until(batch["id"], "in_progress")
        keys.write_text("b:sk-2\n")
        while await _status(app, batch) != "cancelled":
            pass
        assert app.replica.admission.num_background == 0


async def _status(app, batch):
    return await app.replica.batches.disk.run(
        lambda disk: disk.db.execute(
            "SELECT status FROM batches WHERE id = ?", (batch["id"],)
        ).fetchone()[0]
    )


async def test_lists_come_in_pages(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        ids = [(await client.upload(jsonl(line("a")))).json()["id"] for _ in range(5)]
        found, after = [], ""
        while True:
            page = await client.get(f"/v1/files?limit=2{after}")
            found += [item["id"] for item in page["data"]]
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], found[-1])
            if not page["has_more"]:
                break
            after = f"&after={found[-1]}"
        assert found == ids[::-1]
        page = await client.get("/v1/files?order=asc&purpose=batch")
        assert [item["id"] for item in page["data"]] == ids
        assert (await client.get("/v1/files?purpose=batch_output"))["data"] == []
        made = [(await client.create(i)).json()["id"] for i in ids]
        page = await client.get(f"/v1/batches?limit=3&after={made[4]}")
        assert [item["id"] for item in page["data"]] == made[3:0:-1]
        assert page["has_more"]
        for bad in ("limit=0", "limit=x", "limit=101", "after=none", "order=up", "a&" * 3000 + "b"):
            answer = await app.http.get(f"/v1/batches?{bad}")
            assert answer.status_code == 400, bad


async def test_files_are_read_and_deleted_but_not_under_a_batch(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        content = jsonl(line("a", user="ü" * 300_000))
        file = (await client.upload(content)).json()
        assert file["bytes"] == len(content)
        assert await client.content(file["id"]) == content
        app.engine.is_held = True
        batch = (await client.create(file["id"])).json()
        answer = await app.http.delete(f"/v1/files/{file['id']}")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "file_in_use"
        app.engine.is_held = False
        await client.until(batch["id"], *DONE)
        assert (await app.http.delete(f"/v1/files/{file['id']}")).json() == {
            "id": file["id"], "object": "file", "deleted": True,
        }  # fmt: skip
        assert (await app.http.get(f"/v1/files/{file['id']}")).status_code == 404
        left = {path.name for path in (tmp_path / "batches" / "files").iterdir()}
        assert left == {item["id"] for item in (await client.get("/v1/files"))["data"]}


async def test_storage_is_bounded(tmp_path):
    limits = {"batch_storage": 6000, "max_file_bytes": 4000, "max_files": 3}
    async with app_of(tmp_path, batches=limits) as app:
        client = BatchClient(app.http)
        answer = await client.upload(b"x" * 4001)
        assert answer.status_code == 413
        assert answer.json()["error"]["param"] == "file"
        assert (await client.upload(b"x" * 70_000)).status_code == 413
        assert (await client.upload(b"x" * 100_000)).status_code == 413
        batch = await client.begin(jsonl(*[line(f"l{n}") for n in range(20)]))
        batch = await client.until(batch["id"], *DONE)
        counts = batch["request_counts"]
        assert counts["completed"] + counts["failed"] == 20
        errors = await client.errors(batch)
        assert {item["error"]["code"] for item in errors} == {"storage_full"}
        assert len(errors) == counts["failed"] > 0
        answer = await client.upload(jsonl(line("a")))
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "60"
        assert list((tmp_path / "batches" / "uploads").iterdir()) == []


async def test_without_a_directory_there_are_none(tmp_path):
    async with InProcess(tmp_path) as app:
        client = BatchClient(app.http)
        for answer in (
            await client.upload(b"x"),
            await client.create("file-x"),
            await app.http.get("/v1/files"),
            await app.http.get("/v1/batches/x"),
        ):
            assert answer.status_code == 404
            assert "--batch-dir" in answer.json()["error"]["message"]


async def test_another_server_may_not_use_the_directory(tmp_path):
    from headrace.core.errors import ConfigError

    async with app_of(tmp_path):
        with pytest.raises(ConfigError, match="used by another server"):
            app_of(tmp_path)
    async with app_of(tmp_path):
        pass


async def test_what_was_left_is_gone_on_with(tmp_path):
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        app.engine.is_held = True
        batch = await client.begin(jsonl(*[line(f"l{n}") for n in range(9)]))
        await client.until(batch["id"], "in_progress")
        await until(lambda: app.replica.admission.num_background)
    (tmp_path / "batches" / "files" / "stray").write_bytes(b"nobody's")
    (tmp_path / "batches" / "uploads" / "half").write_bytes(b"half")
    async with app_of(tmp_path) as app:
        client = BatchClient(app.http)
        batch = await client.until(batch["id"], *DONE)
        assert batch["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
        names = {path.name for path in (tmp_path / "batches").rglob("*")}
        assert not names & {"stray", "half"}


async def test_an_engine_that_fails_a_request_is_asked_again_but_not_for_ever(tmp_path):
    async with app_of(tmp_path) as app:
        client, tries = BatchClient(app.http), []
        submit = app.engine.submit

        def failing(*requests):
            text = json.dumps([list(s.token_ids) for s in requests[0].prompt])
            tries.append(text)
            if requests[0].params.max_tokens == 7 or tries.count(text) == 1:
                raise RuntimeError("the engine failed")
            return submit(*requests)

        app.engine.submit = failing
        batch = await client.begin(jsonl(line("once"), line("ever", max_tokens=7)))
        batch = await client.until(batch["id"], *DONE)
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        assert len(tries) == 5
        (error,) = await client.errors(batch)
        assert error["response"]["status_code"] == 500
