"""Pipelines in a gateway: steps over real sockets, the last one to the client."""

import msgspec
import pytest
from tests.support.echo_model import asked
from tests.support.in_process_gateway import CHAT
from tests.support.pipeline_site import ANSWER, llm, site

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.fleet.pipelines import PipelinesConfig
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.pipelines.vectors import VectorFile

KIND = {
    "name": "kind",
    "kserve": {
        "url": "URL",
        "model": "kind",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["{{ input }}"]}],
    },
}


async def test_steps_see_the_results_of_those_before():
    steps = [llm("short", "Shorter: {{ input }}"), llm("again", "{{ short.text }}!")]
    last = llm("answer", "{{ again.text }} {{ short.finish_reason }}", "m")
    async with site(items=[{"name": "pipe", "steps": [*steps, last]}]) as at:
        call = await at.ask("tea")
        assert call.status == 200
        assert call.text == "<<<Shorter: tea>!> stop>"
        assert [chat["model"] for chat in at.chats] == ["small", "small", "m"]
        told = call.headers["x-headrace-pipeline"]
        assert [part.split()[:2] for part in told.split("; ")] == [["short", "ok"], ["again", "ok"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_step_is_told_to_the_client_as_it_wants_it(stream):
    async with site([llm("short", "x")]) as at:
        call = await at.ask("tea", stream=stream, max_tokens=7, temperature=0, user="u", seed=3)
        assert call.text == "<tea>"
        assert "x-headrace-pipeline" in call.headers
        first, last = at.chats
        assert (last["max_tokens"], last["temperature"], last["seed"]) == (7, 0, 3)
        assert last["user"] == first["user"] == "u"
        assert "max_tokens" not in first
        assert last.get("stream", False) is stream


async def test_a_condition_leaves_a_step_out():
    steps = [
        KIND,
        llm("yes", "asked", when="{{ kind.outputs.label[0] == 'question' }}"),
        llm("no", "told", when="{{ kind.outputs.label[0] == 'order' }}"),
    ]
    last = llm("answer", "{{ yes.text if yes else no.text }}", "m")
    async with site(items=[{"name": "pipe", "steps": [*steps, last]}]) as at:
        assert (await at.ask("why?")).text == "<<asked>>"
        call = await at.ask("do it")
        assert call.text == "<<told>>"
        assert "yes skipped" in call.headers["x-headrace-pipeline"]


async def test_parallel_steps_run_at_once(tmp_path):
    steps = [{"name": "both", "parallel": [llm("one", "1"), llm("two", "2"), KIND]}]
    last = llm("answer", "{{ one.text }}{{ both.two.text }}{{ kind.outputs.label[0] }}", "m")
    async with site(items=[{"name": "pipe", "steps": [*steps, last]}]) as at:
        at.model.gate.clear()
        call = at.gateway.call(CHAT, model="pipe", messages=[{"role": "user", "content": "why?"}])
        await at.gateway.until(lambda: len(at.chats) == 2, "both are asked")
        at.model.gate.set()
        assert (await call.end()).text == "<<1><2>question>"


async def test_a_list_goes_to_a_server_of_models_as_a_list():
    found = {"name": "found", "retrieve": {"store": "s", "top": 3}}
    rank = {
        "name": "rank",
        "kserve": {
            "url": "URL",
            "model": "rank",
            "inputs": [
                {
                    "name": "texts",
                    "datatype": "BYTES",
                    "shape": ["{{ found.hits | length }}"],
                    "data": "{{ found.hits | map(attribute='text') | list }}",
                }
            ],
        },
    }
    last = llm("answer", "{{ rank.outputs.scores }}", "m")
    store = {"name": "s", "url": "URL/search"}
    async with site(items=[{"name": "pipe", "steps": [found, rank, last]}], vectors=[store]) as at:
        assert (await at.ask()).text == "<[5, 5, 5]>"
        sent = asked(at.other, "/v2/models/rank/infer")[0]["inputs"][0]
        assert sent["shape"] == [3]
        assert asked(at.other, "/search") == [{"query": "hi", "top": 3}]


async def test_texts_are_found_in_a_file_of_vectors(tmp_path):
    path = tmp_path / "notes.db"
    store = VectorFile(path, is_new=True)
    store.add(
        [("cats purr", [1.1, 0.1, 0.1]), ("dogs bark", [0.1, 1.1, 0.1]), ("cars", [0.1, 0.1, 1.1])]
    )
    store.close()
    found = {"name": "found", "retrieve": {"store": "notes", "top": 1}}
    last = llm("answer", "{{ found.text }} {{ found.hits[0].score > 0.99 }}", "m")
    vectors = [{"name": "notes", "path": str(path), "embeddings": "small"}]
    async with site(items=[{"name": "pipe", "steps": [found, last]}], vectors=vectors) as at:
        assert (await at.ask("my dog")).text == "<dogs bark True>"
        assert asked(at.model, "/v1/embeddings") == [{"model": "small", "input": "my dog"}]


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_file_of_vectors_may_be_filled_while_the_gateway_runs(tmp_path, is_empty):
    path = tmp_path / "notes.db"
    if is_empty:
        path.write_bytes(b"")
    found = {"name": "found", "retrieve": {"store": "notes", "top": 1}}
    last = llm("answer", "{{ found.text }}", "m")
    vectors = [{"name": "notes", "path": str(path), "embeddings": "small"}]
    async with site(items=[{"name": "pipe", "steps": [found, last]}], vectors=vectors) as at:
        for _ in range(2):
            call = await at.ask("my dog")
            assert call.status == 503
            assert call.error["message"] == "The step 'found': The store 'notes' has no texts yet."
        (doubt,) = at.gateway.service.pipelines.doubts
        assert str(path) in doubt
        assert "'notes'" in doubt
        store = VectorFile(path, is_new=True)
        store.add([("dogs bark", [0.1, 1.1, 0.1])])
        store.close()
        assert (await at.ask("my dog")).text == "<dogs bark>"


async def test_other_servers_are_got_and_posted_to():
    steps = [
        {"name": "got", "http": {"url": "URL/greet?to=all"}},
        {"name": "told", "http": {"url": "URL/json", "body": '{"t": {{ input | tojson }} }'}},
        {"name": "bad", "http": {"url": "URL/nothing", "body": "x"}},
    ]
    last = llm(
        "answer", "{{ got.text }} {{ told.json.told.t }} {{ bad.status }} {{ bad.json }}", "m"
    )
    async with site(items=[{"name": "pipe", "steps": [*steps, last]}]) as at:
        assert (await at.ask('say "é"')).text == '<hello say "é" 500 None>'


@pytest.mark.parametrize(
    ("step", "status", "told"),
    [
        (llm("s", "x", "bad-1"), 400, "too long for me"),
        (llm("s", "x", "garbled-1"), 502, "cannot be read"),
        (llm("s", "x", "unknown"), 404, "does not exist"),
        (llm("s", "{{ input.x.y }}"), 400, "template"),
        ({"name": "s", "kserve": {"url": "URL", "model": "broken", "inputs": []}}, 502, "answered with status 404"),
        ({"name": "s", "kserve": {"url": "URL", "model": "x", "inputs": []}}, 502, "KServe"),
        ({"name": "s", "http": {"url": "http://127.0.0.1:1/"}}, 502, "server of this step failed"),
        ({"name": "s", "retrieve": {"store": "bad"}}, 502, "hits"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_inner", [False, True])
async def test_an_error_names_its_step(caplog, step, status, told, is_inner):
    steps = [{"name": "both", "parallel": [llm("fine", "x"), step]}] if is_inner else [step]
    async with site(steps, vectors=[{"name": "bad", "url": "URL/bad"}]) as at:
        call = await at.ask(stream=True)
        assert call.status == status, call.body
        assert call.error["message"].startswith("The step 's'")
        assert told in call.error["message"]
        logged = [r.message for r in caplog.records if r.name == "headrace.fleet.pipelines"]
        assert logged.count(f"Pipeline pipe: {call.error['message']}") == 1
        assert not any(chat["model"] == "m" for chat in at.chats)


async def test_a_client_that_leaves_ends_all_steps():
    steps = [{"name": "both", "parallel": [llm("one", "1"), llm("two", "2")]}]
    async with site(steps) as at:
        at.model.gate.clear()
        call = at.gateway.call(CHAT, model="pipe")
        await at.gateway.until(lambda: len(at.chats) == 2, "both are asked")
        call.leave()
        await call.end()
        await at.gateway.until(lambda: at.model.num_left == 2, "the replica is left twice")
        at.model.gate.set()


async def test_texts_are_bounded():
    steps = [llm("long", "{{ input }}{{ input }}")]
    async with site(steps, pipeline={"max_text": 100}) as at:
        assert (await at.ask("a" * 50)).status == 200
        call = await at.ask("é" * 30)
        assert call.status == 400
        assert "too long" in call.error["message"]


@pytest.mark.parametrize("messages", [None, "text", 3])
async def test_messages_that_are_none_are_refused(messages):
    async with site() as at:
        call = await at.ask(messages=messages)
        assert call.status == 400
        assert call.error["param"] == "messages"


FUNCTION = {"type": "function", "function": {"name": "mine"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [FUNCTION]}, "tools"),
        ({"tools": [{"type": "gateway", "name": "x"}], "tool_choice": "required"}, "tools"),
        ({"functions": [FUNCTION["function"]]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "mine"}}}, "tool_choice"),
    ],
)  # fmt: skip
async def test_a_pipeline_refuses_tools_of_its_client(fields, param):
    async with site([llm("short", "x")]) as at:
        call = await at.ask(**fields)
        assert (call.status, call.error["param"]) == (400, param)
        assert not at.chats
        assert (await at.ask(tools=[], tool_choice="auto")).status == 200


async def test_a_pipeline_answers_chats_only():
    async with site() as at:
        call = await at.gateway.ask("/v1/completions", model="pipe")
        assert call.status == 400
        assert call.error["param"] == "model"
        assert set(at.gateway.service.names()) == {"pipe"}


async def test_a_pipeline_may_ask_another():
    items = [
        {"name": "pipe", "steps": [llm("first", "{{ input }}", "inner"), ANSWER | llm("answer", "{{ first.text }}", "m")]},
        {"name": "inner", "steps": [llm("answer", "in {{ input }}", "small")]},
    ]  # fmt: skip
    async with site(items=items) as at:
        assert (await at.ask("tea")).text == "<<in tea>>"


async def test_a_key_needs_the_pipelines_name_and_no_other():
    keys = (
        KeyConfig(name="a", key=Secret("key-a"), models=("pipe",)),
        KeyConfig(name="b", key=Secret("key-b"), models=("m", "small")),
    )
    async with site([llm("short", "x")], accounts=AccountsConfig(keys=keys)) as at:
        by_a = {"authorization": "Bearer key-a"}
        assert (await at.ask(headers=by_a)).status == 200
        assert (await at.ask(headers=by_a, model="m")).status == 403
        by_b = {"authorization": "Bearer key-b"}
        call = await at.ask(headers=by_b)
        assert call.status == 403
        assert "pipe" in call.error["message"]
        assert (await at.ask(headers=by_b, model="m")).status == 200


async def test_a_new_configuration_takes_effect_and_what_runs_goes_on():
    async with site([llm("old", "x")]) as at:
        service = at.gateway.service
        at.model.gate.clear()
        running = at.gateway.call(CHAT, model="pipe")
        await at.gateway.until(lambda: len(at.chats) == 1, "the step is asked")
        before = service.pipelines
        renamed = msgspec.convert(
            {"items": [{"name": "other", "steps": [ANSWER]}]}, PipelinesConfig
        )
        config = msgspec.structs.replace(service._trade.config, pipelines=renamed)
        service.apply(config)
        assert service.names() == ("other",)
        at.model.gate.set()
        assert (await running.end()).status == 200
        assert (await at.ask(model="other")).status == 200
        assert (await at.ask()).status == 404
        assert before._is_retired
        service.apply(config)
        kept = service.pipelines
        bad = msgspec.convert(
            {"items": [{"name": "bad", "steps": [llm("answer", "{{ nothing }}")]}]},
            PipelinesConfig,
        )
        with pytest.raises(ConfigError, match="nothing"):
            service.apply(msgspec.structs.replace(config, pipelines=bad))
        assert service.pipelines is kept
