"""gRPC against a real server process: every kind of call, errors, cancelling, deadlines, keys, TLS, the end."""

import random
import threading
import time

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tests.support.certificates import self_signed
from tests.support.fake_server import FakeServer
from tests.support.grpc_client import GrpcClient, address_of, error_object
from tests.support.patience import PATIENCE
from tests.support.processes import until

from headrace.server.rpc.schema import SERVICE

KEY = {"x-api-key": "sk-1"}
ASK = {"text": "hello", "sampling": {"max_tokens": 6, "seed": 1}}
CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "sampling": {"max_tokens": 6, "seed": 1},
}
ENDLESS = {"text": "hello", "sampling": {"max_tokens": 1900, "ignore_eos": True}}
MAX_CALLS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpc")
    with FakeServer(
        folder,
        engine={"step": 0.005, "max_num_seqs": 16},
        security={"api_keys": "alice:sk-1"},
        grpc_port=0,
        max_grpc_calls=MAX_CALLS,
        max_grpc_message_bytes=200_000,
        default_max_tokens=8,
        stall_timeout=2.0,
    ) as running:
        yield running


@pytest.fixture
def client(server):
    with grpc.insecure_channel(address_of(server.lines)) as channel:
        yield GrpcClient(channel, authorization="Bearer sk-1")


def load(server):
    report = httpx.get(f"{server.url}/load", headers=KEY).json()
    return report["num_running"] + report["num_waiting"]


def refused(code, function, *arguments, **options):
    """The error of a call that must fail with this code."""
    with pytest.raises(grpc.RpcError) as caught:
        list(function(*arguments, **options))
    assert caught.value.code() is code, caught.value
    return caught.value


def post(server, path, **body):
    answer = httpx.post(f"{server.url}{path}", json=body, headers=KEY)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_is_that_of_http_whole_and_in_a_stream(server, client):
    wanted = post(server, "/v1/completions", prompt="hello", max_tokens=6, seed=1)
    whole = client.call("Generate", **ASK)
    text = wanted["choices"][0]["text"]
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "length")
    assert (whole.model, whole.usage.completion_tokens) == ("fake", 6)
    *parts, last = client.call("GenerateStream", **ASK)
    assert "".join(part.choices[0].text for part in parts) == text
    assert parts[-1].choices[0].finish_reason == "length"
    assert (list(last.choices), last.usage) == ([], whole.usage)
    ids = client.call("Generate", tokens={"ids": list(b"hello")}, sampling=ASK["sampling"])
    assert ids.choices[0].text == text
    told = client.call("Generate", **ASK, options={"return_token_ids": True, "logprobs": 1})
    assert bytes(told.choices[0].token_ids).decode() == text
    assert len(told.choices[0].logprobs["tokens"]) == 6


def test_a_chat_is_that_of_http_whole_and_in_a_stream(server, client):
    wanted = post(server, "/v1/chat/completions", messages=CHAT["messages"], max_tokens=6, seed=1)
    whole = client.call("Chat", **CHAT)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert message.content == wanted["choices"][0]["message"]["content"]
    *chunks, last = client.call("ChatStream", **CHAT)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == message.content
    assert last.usage == whole.usage


def test_models(client):
    (model,) = client.call("ListModels").data
    assert (model.id, model.max_model_len, list(model.capabilities)) == (
        "fake",
        2048,
        ["generate", "embed"],
    )


def test_names_of_requests_go_both_ways_and_end_them(server, client):
    call = client.method("Generate")
    metadata = (("x-api-key", "sk-1"), ("x-request-id", "mine.1"))
    made = client.message("Generate", **ASK, options={"no_such_field": 1})
    _, done = call.with_call(made, metadata=metadata, timeout=PATIENCE)
    told = dict(done.initial_metadata())
    assert told["x-request-id"] == "mine.1"
    assert told["x-headrace-ignored-fields"] == "no_such_field"
    stream = client.call("GenerateStream", **ENDLESS, headers={"x-request-id": "mine.2"})
    next(stream)
    assert post(server, "/v1/abort", request_id="mine.2")["num_aborted"] == 1
    error = refused(grpc.StatusCode.CANCELLED, lambda: stream)
    assert error_object(error)["code"] == "request_cancelled"


@pytest.mark.parametrize(
    ("method", "fields", "code", "param"),
    [
        (
            "Generate",
            {"text": "a", "sampling": {"temperature": -1}},
            "INVALID_ARGUMENT",
            "temperature",
        ),
        ("Generate", {}, "INVALID_ARGUMENT", "prompt"),
        ("Generate", {"tokens": {}}, "INVALID_ARGUMENT", "prompt"),
        ("Generate", {"tokens": {"ids": [99999]}}, "INVALID_ARGUMENT", "prompt[0]"),
        ("Generate", {"text": "a" * 3000}, "INVALID_ARGUMENT", "prompt"),
        ("GenerateStream", {"text": "a", "options": {"n": "x"}}, "INVALID_ARGUMENT", "n"),
        ("GenerateStream", {"text": "a", "model": "no"}, "NOT_FOUND", None),
        ("Chat", {"messages": [{"role": "nobody"}]}, "INVALID_ARGUMENT", "messages[0].role"),
        ("Chat", {}, "INVALID_ARGUMENT", "messages"),
        (
            "ChatStream",
            {**CHAT, "options": {"stream": False}},
            "INVALID_ARGUMENT",
            "options.stream",
        ),
    ],
)
def test_errors_are_those_of_http(client, method, fields, code, param):
    error = refused(getattr(grpc.StatusCode, code), client.call, method, **fields)
    told = error_object(error)
    assert (told["param"], told["message"]) == (param, error.details())


def test_garbage_is_the_clients_fault(server, client):
    error = refused(grpc.StatusCode.INVALID_ARGUMENT, client.raw, "Generate", b"\xff\xff\xff")
    assert "GenerateRequest" in error.details()
    refused(grpc.StatusCode.INVALID_ARGUMENT, client.raw, "ListModels", b"\x07")
    refused(grpc.StatusCode.UNIMPLEMENTED, client.raw, "NoSuchMethod", b"")
    refused(grpc.StatusCode.UNIMPLEMENTED, client.raw, "Generate", b"", service="no.Such")
    large = {"text": "a" * 300_000}
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, client.call, "Generate", **large)
    draw = random.Random(7)
    good = client.message("Chat", **CHAT, options={"a": {"b": [1, None, "c"]}}).SerializeToString()
    allowed = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK}
    for _ in range(150):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            client.raw("Chat", bytes(data[: draw.randrange(len(data) + 1)]))
        except grpc.RpcError as error:
            assert error.code() in allowed, error  # noqa: PT017
    until(lambda: load(server) == 0)
    assert client.call("Generate", **ASK).choices[0].text


def test_cancelling_frees_the_engine(server, client):
    stream = client.call("GenerateStream", **ENDLESS)
    next(stream)
    until(lambda: load(server) == 1)
    stream.cancel()
    until(lambda: load(server) == 0)
    whole = client.method("Generate").future(
        client.message("Generate", **ENDLESS), metadata=(("x-api-key", "sk-1"),), timeout=PATIENCE
    )
    until(lambda: load(server) == 1)
    whole.cancel()
    until(lambda: load(server) == 0)


def test_a_deadline_reaches_the_engine(server, client):
    for method in ("Generate", "GenerateStream"):
        refused(grpc.StatusCode.DEADLINE_EXCEEDED, client.call, method, timeout=0.3, **ENDLESS)
        until(lambda: load(server) == 0)


def test_calls_are_bounded_and_health_is_not(server, client):
    streams = [client.call("GenerateStream", **ENDLESS) for _ in range(MAX_CALLS)]
    for stream in streams:
        next(stream)
    error = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, client.call, "Generate", **ASK)
    assert dict(error.trailing_metadata())["retry-after"] == "1"
    assert error_object(error)["code"] == "rate_limit_exceeded"
    check = health_pb2_grpc.HealthStub(client.channel).Check
    serving = health_pb2.HealthCheckResponse.SERVING
    assert check(health_pb2.HealthCheckRequest(service=SERVICE)).status == serving
    for stream in streams:
        stream.cancel()
    until(lambda: load(server) == 0)


def test_a_client_that_does_not_read_is_cut_off(server):
    options = [("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(address_of(server.lines), options=options) as channel:
        slow = GrpcClient(channel, authorization="Bearer sk-1")
        stream = slow.call("GenerateStream", **ENDLESS, timeout=PATIENCE)
        next(stream)
        time.sleep(0.05)
        until(lambda: load(server) == 0)  # long before all is made, or else after it
        time.sleep(0.01)
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_every_call_needs_a_key_but_those_for_health(server):
    with grpc.insecure_channel(address_of(server.lines)) as channel:
        for metadata in ({}, {"authorization": "Bearer sk-2"}, {"authorization": "sk-1"}):
            stranger = GrpcClient(channel, **metadata)
            for method, fields in (("Generate", ASK), ("ChatStream", CHAT), ("ListModels", {})):
                error = refused(grpc.StatusCode.UNAUTHENTICATED, stranger.call, method, **fields)
                assert error_object(error)["code"] == "invalid_api_key"
            refused(grpc.StatusCode.UNAUTHENTICATED, stranger.raw, "NoSuchMethod", b"")
        reflected = ProtoReflectionDescriptorDatabase(channel)
        refused(grpc.StatusCode.UNAUTHENTICATED, reflected.get_services)
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == 1
        other = health_pb2.HealthCheckRequest(service="no.Such")
        refused(grpc.StatusCode.NOT_FOUND, health.Check, other)
        unknown = next(health.Watch(other, timeout=PATIENCE))
        assert unknown.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def other(tmp_path):
    """A server of one test's own, which ends it."""

    def start(engine=None, **server):
        engine = {"step": 0.01, **(engine or {})}
        return FakeServer(tmp_path, engine=engine, grpc_port=0, **server)

    return start


def test_reflection_and_the_end_of_a_server(other, tmp_path):
    last = tmp_path / "last"
    with (
        other({"step": 0.0, "last": str(last)}) as server,
        grpc.insecure_channel(address_of(server.lines)) as channel,
    ):
        client = GrpcClient(channel)
        reflected = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in reflected.get_services()
        file = reflected.FindFileContainingSymbol(SERVICE)
        (service,) = file.service
        assert [m.name for m in service.method][:2] == ["Generate", "GenerateStream"]
        heard = []
        watching = threading.Thread(target=watch, args=(channel, heard))
        watching.start()
        until(lambda: heard == [1])
        ask = {"text": "hello", "sampling": {"max_tokens": 150, "ignore_eos": True}}
        stream = client.call("GenerateStream", **ask)
        next(stream)
        server.signal()
        until(lambda: heard == [1, 2])
        error = refused(grpc.StatusCode.UNAVAILABLE, client.call, "Generate", **ASK)
        assert "shutting down" in error.details()
        last.touch()
        *_, last, usage = stream
        assert (last.choices[0].finish_reason, usage.usage.completion_tokens) == ("length", 150)
        assert server.wait() == 0
        watching.join(PATIENCE)
        assert not watching.is_alive()


def test_an_engine_that_dies_is_seen_and_its_successor_serves(other, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    with (
        other({"gate": str(gate)}) as server,
        grpc.insecure_channel(address_of(server.lines)) as channel,
    ):
        client = GrpcClient(channel)
        check = health_pb2_grpc.HealthStub(channel).Check
        stream = client.call("GenerateStream", **ENDLESS)
        next(stream)
        (engine,) = psutil.Process(server.process.pid).children()
        gate.unlink()
        engine.kill()
        error = refused(grpc.StatusCode.INTERNAL, lambda: stream)
        assert error_object(error)["code"] == "engine_died"
        assert check(health_pb2.HealthCheckRequest()).status == 2
        gate.touch()
        until(lambda: check(health_pb2.HealthCheckRequest()).status == 1)
        assert client.call("Generate", **ASK).choices[0].text
        assert any("client=127.0.0.1" in line for line in server.lines)


def watch(channel, heard):
    """Statuses as they change, until the server ends."""
    health = health_pb2_grpc.HealthStub(channel)
    try:
        for item in health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE):
            heard.append(item.status)
    except grpc.RpcError:
        pass


def test_what_is_cut_short_says_so(other):
    with other(drain_timeout=0.2) as server:
        with grpc.insecure_channel(address_of(server.lines)) as channel:
            stream = GrpcClient(channel).call("GenerateStream", **ENDLESS)
            next(stream)
            server.signal()
            *_, last, _ = stream
            assert last.choices[0].stop_reason.string_value == "shutdown"
        assert server.wait() == 0


def test_tls_is_that_of_http(tmp_path):
    ours, theirs = self_signed(tmp_path, "server"), self_signed(tmp_path, "client")
    security = {
        "ssl_certfile": str(ours.cert),
        "ssl_keyfile": str(ours.key),
        "ssl_ca_certs": str(theirs.cert),
    }
    with FakeServer(tmp_path, security=security, grpc_port=0) as server:
        address = address_of(server.lines)
        root, chain = ours.cert.read_bytes(), theirs.cert.read_bytes()
        good = grpc.ssl_channel_credentials(root, theirs.key.read_bytes(), chain)
        with grpc.secure_channel(address, good) as channel:
            assert GrpcClient(channel).call("Generate", **ASK).choices[0].text
        without = grpc.ssl_channel_credentials(root)
        with grpc.secure_channel(address, without) as channel:
            refused(
                grpc.StatusCode.UNAVAILABLE,
                GrpcClient(channel).call,
                "ListModels",
                timeout=PATIENCE,
            )
        with grpc.insecure_channel(address) as channel:
            refused(
                grpc.StatusCode.UNAVAILABLE,
                GrpcClient(channel).call,
                "ListModels",
                timeout=PATIENCE,
            )


def test_a_port_that_is_taken_ends_the_start(tmp_path, server):
    port = int(address_of(server.lines).rpartition(":")[2])
    with FakeServer(tmp_path, wait=False, grpc_port=port) as second:
        assert second.wait() == 2
    assert f"127.0.0.1:{port}" in second.lines[-1]
    assert "--grpc-port" in second.lines[-1]
