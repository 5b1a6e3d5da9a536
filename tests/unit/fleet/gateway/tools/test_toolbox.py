"""Who may use which tools, which of them a request has, and what a new configuration changes."""

import asyncio

import pytest
from tests.support.in_process_gateway import until
from tests.support.patience import PATIENCE
from tests.support.scripted_tools import Sources, http_tool, mcp_server, toolbox_of

from headrace.config.fleet.tools import Grant, McpServer, Offer, ToolsConfig
from headrace.core.errors import BadRequestError, ConfigError, UnavailableError
from headrace.fleet.gateway.tools.mcp_source import MAX_TOOLS, McpSource
from headrace.fleet.gateway.tools.plan import read_plan
from headrace.fleet.gateway.tools.values import Result, Tool
from headrace.observe import catalogue

TWO = {"calc": ("add", "sub"), "web": ("web",)}
MCP = {"type": "mcp", "server_label": "calc"}
MINE = {"type": "function", "function": {"name": "mine"}}


async def own(toolbox, tools, *, model="m", tenant="t", **fields):
    """Names of the gateway's tools in a request, or None without a plan."""
    plan = await read_plan(toolbox, {"tools": tools, **fields}, model, tenant)
    return None if plan is None else set(plan.own)


async def test_a_request_has_the_tools_of_the_servers_that_it_names():
    toolbox = toolbox_of(Sources(TWO))
    assert await own(toolbox, [MCP]) == {"calc__add", "calc__sub"}
    assert await own(toolbox, [{"type": "gateway", "name": "web"}, MINE]) == {"web"}
    assert await own(toolbox, [{**MCP, "allowed_tools": ["a*"]}]) == {"calc__add"}
    assert await own(
        toolbox, [{**MCP, "allowed_tools": {"tool_names": ["sub"], "read_only": None}}]
    ) == {"calc__sub"}
    assert await own(toolbox, [MINE]) is None
    assert await own(toolbox, None) is None


async def test_tools_of_the_client_stay_its_own_and_win_where_names_are_the_same():
    toolbox = toolbox_of(Sources(TWO))
    same = {"type": "function", "function": {"name": "calc__add"}}
    plan = await read_plan(toolbox, {"tools": [MCP, MINE, same]}, "m", "t")
    assert set(plan.own) == {"calc__sub"}
    assert plan.others == (MINE, same)
    assert [f["function"]["name"] for f in plan.functions()] == ["calc__sub", "mine", "calc__add"]


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ({**MCP, "server_url": "http://evil.test/"}, "tools", "no others"),
        ({**MCP, "connector_id": "connector_gmail"}, "tools", "no others"),
        ({"type": "mcp", "server_label": "unknown"}, "tools[1].server_label", "tool server 'unknown'"),
        ({"type": "mcp"}, "tools[1].server_label", "expected the name of a tool server"),
        ({"type": "mcp", "server_label": ["calc"]}, "tools[1].server_label", "expected the name"),
        ({"type": "gateway", "name": "wether"}, "tools[1].name", "no tool 'wether'"),
        ({"type": "gateway"}, "tools[1].name", "expected the name of a tool."),
    ],
)  # fmt: skip
async def test_servers_that_are_not_configured_are_refused(entry, field, words):
    with pytest.raises(BadRequestError, match=words) as caught:
        await own(toolbox_of(Sources(TWO)), [MINE, entry])
    assert caught.value.param == field


@pytest.mark.parametrize(
    "allowed",
    [
        "add", 3, False, [], ["add", 3], {}, {"tool_names": "add"}, {"tool_names": None}, {"read_only": True},
        {"tool_names": ["add"], "read_only": True}, {"names": ["add"]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_restriction_that_cannot_be_read_never_widens(allowed, choice):
    asked = own(
        toolbox_of(Sources(TWO)), [MINE, {**MCP, "allowed_tools": allowed}], tool_choice=choice
    )
    if allowed == []:
        assert await asked == set()
        return
    with pytest.raises(BadRequestError) as caught:
        await asked
    assert caught.value.param == "tools[1].allowed_tools"


REQUIRING = ["required", {"type": "function", "function": {"name": "calc__add"}}, 3]


@pytest.mark.parametrize("choice", REQUIRING)
async def test_a_call_that_is_required_of_a_server_without_tools_is_for_later(choice):
    toolbox = toolbox_of(Sources({"calc": (), "web": ("web",)}))
    with pytest.raises(UnavailableError, match="'calc'"):
        await own(toolbox, [MCP], tool_choice=choice)


@pytest.mark.parametrize("choice", REQUIRING)
@pytest.mark.parametrize("allowed", [["saerch"], ["add"], []])
async def test_a_call_that_is_required_and_that_nobody_may_make_is_refused(choice, allowed):
    grants = (Grant(tools=("calc__*",), tenants=("a",)),)
    toolbox = toolbox_of(Sources(TWO), grants=grants)
    tools = [{**MCP, "allowed_tools": allowed}]
    with pytest.raises(BadRequestError) as caught:
        await own(toolbox, tools, tool_choice=choice, tenant="b")
    assert caught.value.param == "tool_choice"
    if allowed == ["add"]:
        assert await own(toolbox, tools, tool_choice=choice, tenant="a") == {"calc__add"}


@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_without_a_requirement_a_request_goes_on_without_tools(choice):
    toolbox = toolbox_of(Sources({"calc": ()}))
    assert await own(toolbox, [MCP], tool_choice=choice) == set()
    assert await own(toolbox, [MCP, MINE], tool_choice="required") == set()


@pytest.mark.parametrize("fields", [{"n": 2}, {"background": True}])
async def test_what_has_no_rounds_is_refused_with_tools_that_were_asked_for(fields):
    toolbox = toolbox_of(Sources(TWO), offers=(Offer(models=("*",), tools=("*",)),))
    with pytest.raises(BadRequestError) as caught:
        await own(toolbox, [MCP], **fields)
    assert caught.value.param == next(iter(fields))
    assert await own(toolbox, [MINE], **fields) is None


@pytest.mark.parametrize("tools", ["text", [3], {"type": "mcp"}])
async def test_what_is_no_list_of_tools_is_left_to_the_replica(tools):
    toolbox = toolbox_of(Sources(TWO), offers=(Offer(models=("*",), tools=("*",)),))
    assert await own(toolbox, tools) is None


async def test_only_the_servers_that_are_named_are_waited_for():
    sources = Sources(TWO)
    toolbox = toolbox_of(sources)
    sources.opened[1].is_connecting = True
    async with asyncio.timeout(PATIENCE):
        assert await own(toolbox, [MCP]) == {"calc__add", "calc__sub"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await own(toolbox, [{"type": "gateway", "name": "web"}])


async def test_offers_give_tools_to_requests_that_ask_for_none():
    offer = Offer(models=("big-*",), tools=("calc__a*", "web"))
    toolbox = toolbox_of(Sources(TWO), offers=(offer,))
    assert await own(toolbox, None, model="big-1") == {"calc__add", "web"}
    assert await own(toolbox, None, model="small") is None
    assert toolbox.may_have(None)
    assert not toolbox_of(Sources(TWO)).may_have([MINE])


async def test_grants_name_who_may_use_a_tool():
    grants = (Grant(tools=("calc__*",), tenants=("a",)), Grant(tools=("*__sub",), tenants=("b",)))
    offers = (Offer(models=("*",), tools=("*",)),)
    toolbox = toolbox_of(Sources(TWO), grants=grants, offers=offers)
    assert await own(toolbox, None, tenant="a") == {"calc__add", "calc__sub", "web"}
    assert await own(toolbox, None, tenant="b") == {"calc__sub", "web"}
    assert await own(toolbox, None, tenant="c") == {"web"}
    assert await own(toolbox, [MCP], tenant="b") == {"calc__sub", "web"}


async def test_a_new_configuration_keeps_what_is_the_same_and_closes_what_is_gone():
    sources = Sources(TWO)
    toolbox = toolbox_of(sources)
    calc, web = sources.opened
    toolbox.apply(
        ToolsConfig(
            servers=(mcp_server("calc"),),
            http=(http_tool("web", timeout=1.0), http_tool("new")),
        )
    )
    await asyncio.sleep(0)
    assert [source.is_closed for source in (calc, web)] == [False, True]
    assert len(sources.opened) == 4
    assert await own(toolbox, [{"type": "gateway", "name": "new"}]) == {"new"}
    toolbox.apply(ToolsConfig())
    with pytest.raises(BadRequestError):
        await own(toolbox, [MCP])
    await toolbox.close()
    assert all(source.is_closed for source in sources.opened)


async def test_calls_that_run_in_what_is_gone_end_first():
    sources = Sources(TWO)
    toolbox = toolbox_of(sources)
    calc = sources.opened[0]
    add = (await calc.tools())[0]
    calc.gate.clear()
    running = asyncio.ensure_future(toolbox.call_all([(add, "{}")], "req"))
    await until(lambda: calc.num_running == 1, "the call runs")
    toolbox.apply(ToolsConfig())
    await asyncio.sleep(0)
    assert not calc.is_closed
    calc.gate.set()
    assert (await running)[0].text == "add: {}"
    await asyncio.sleep(0)
    assert calc.is_closed
    late = await toolbox.call_all([(add, "{}")], "req")
    assert late[0].is_error
    assert "not there any more" in late[0].text


async def test_servers_need_the_package_before_anything_changes(monkeypatch):
    sources = Sources(TWO)
    toolbox = toolbox_of(sources)
    monkeypatch.setattr("headrace.fleet.gateway.tools.toolbox.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"headrace\[mcp\]"):
        toolbox.apply(ToolsConfig(servers=(McpServer(name="x", command=("true",)),)))
    assert not any(source.is_closed for source in sources.opened)
    assert await own(toolbox, [MCP])


async def test_whoever_leaves_cancels_what_runs_for_it():
    sources = Sources(TWO)
    toolbox = toolbox_of(sources)
    calc = sources.opened[0]
    calc.gate.clear()
    add = (await calc.tools())[0]
    running = asyncio.ensure_future(toolbox.call_all([(add, "{}"), (add, "{}")], "req"))
    await until(lambda: calc.num_running == 2, "both calls run")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert calc.num_running == 0


@pytest.mark.parametrize(
    "fields",
    [{}, {"url": "http://x.test", "command": ("x",)}, {"url": "ftp://x.test"}, {"url": "http://"},
     {"url": "http://x.test:port"}, {"url": "http://x.test/a b"}],
)  # fmt: skip
def test_a_server_has_one_good_address(fields):
    with pytest.raises(ConfigError):
        McpServer(name="x", **fields)


def test_two_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="same name"):
        ToolsConfig(http=(http_tool("x"),), servers=(McpServer(name="x", command=("y",)),))


class FailingClient:
    """Of a tool server."""

    def __init__(self, error):
        self.error = error

    async def call_tool(self, _name, _arguments):
        raise self.error


async def failed(error):
    """What a model is told of a call that failed so."""
    server = McpServer(name="s", url="http://10.1.2.3:9/mcp", max_result=1024)
    source = McpSource(server)
    try:
        source._client = FailingClient(error)
        tool = Tool(name="s__t", description="", parameters={}, source="s", local_name="t")
        return await source.call(tool, {})
    finally:
        await source.close()


async def test_where_a_tool_server_is_is_no_affair_of_a_models():
    told = await failed(ConnectionError("cannot connect to http://10.1.2.3:9/mcp"))
    assert told.is_error
    assert "10.1.2.3" not in told.text


async def test_what_a_tool_says_of_its_failure_is_told_and_bounded():
    error = RuntimeError("no such file" + "!" * 5000)
    error.code = -32602
    told = await failed(error)
    assert told.is_error
    assert "no such file" in told.text
    assert len(told.text) < 1200


async def test_every_call_is_counted_and_a_fault_of_ours_costs_no_other_one():
    def answer(name, given):
        if name == "sub":
            raise RuntimeError("a fault")
        return Result(name)

    sources = Sources(TWO, answer)
    toolbox = toolbox_of(sources)
    add, sub = await sources.opened[0].tools()
    calls = [(add, "{}"), (sub, "{}"), (add, "{"), (add, "[]")]
    results = await toolbox.call_all(calls, "req")
    assert [result.is_error for result in results] == [False, True, True, True]
    assert "a fault" not in results[1].text
    counted = toolbox._metrics.value(catalogue.TOOL_CALLS, ("calc", "error"))
    assert counted == 3


class Listed:
    """A tool as a server lists it."""

    description = None
    input_schema = None

    def __init__(self, name):
        self.name = name


async def test_tools_of_a_server_are_bounded_behind_those_that_are_left_out():
    source = McpSource(McpServer(name="s", url="http://10.1.2.3:9/mcp", allow=("read*",)))
    try:
        listed = [Listed(f"x{n}") for n in range(MAX_TOOLS)]
        listed += [Listed("read.a"), Listed("read_a"), Listed("readme")]
        found = source._read(listed)
        assert [(tool.name, tool.local_name) for tool in found] == [
            ("s__read_a", "read.a"),
            ("s__readme", "readme"),
        ]
        assert len(source._read([Listed(f"read{n}") for n in range(2 * MAX_TOOLS)])) == MAX_TOOLS
    finally:
        await source.close()
