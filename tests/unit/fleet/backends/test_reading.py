"""Values that back ends tell: whatever they are, reading them does not fail."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.fleet.backends import reading
from headrace.fleet.backends import values as wire
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.gateway.progress import usage_of
from headrace.fleet.sse import StreamError

ANY = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.none(), max_size=1)
)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), True, "1", -1])
def test_what_is_no_number_is_as_good_as_absent(value):
    assert reading.share(value) is None
    assert reading.count(value) is None


@given(ANY | st.just(10**400), ANY, ANY, ANY)
def test_usage_is_whole_and_bounded_whatever_is_told(prompt, output, cached, read):
    told = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "cache_read_input_tokens": read,
    }
    usage = usage_of(told)
    for count in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens):
        assert type(count) is int
        assert 0 <= count < 2**33


NUMBERS = st.sampled_from([0, 1, -1, 10**400, 1e308, True, None, "x", [], {}])
NAMES = [
    "num_running", "num_waiting", "kv_usage", "max_num_seqs", "outstanding_tokens", "state", "is_processing", "status",
    "numActiveRequests", "numQueuedRequests", "maxNumActiveRequests", "kvCacheStats", "usedNumBlocks", "maxNumBlocks",
    "freeNumBlocks", "data", "models", "id", "name", "max_model_len", "inputTokenLimit", "error", "meta",
]  # fmt: skip
TOLD = st.recursive(
    NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("dialect", sorted(set(Dialect) - {Dialect.BEDROCK}))
@given(told=TOLD)
def test_no_json_of_a_probe_fails_its_reader(dialect, told):
    backend = backend_for(ReplicaSpec(url="http://localhost:1", dialect=dialect, models=("m",)))
    body = msgspec.json.encode(told)
    for status in (200, 503):
        backend.read_load(status, body)
        backend.read_health(status, body)
        backend.read_models(status, body)


@pytest.mark.parametrize("dialect", [Dialect.VLLM, Dialect.SGLANG, Dialect.TGI])
@pytest.mark.parametrize("value", ["+Inf", "-Inf", "NaN", "1e400", "x", "", "-3", "1e30"])
def test_no_gauge_fails_its_reader(dialect, value):
    backend = backend_for(ReplicaSpec(url="http://localhost:1", dialect=dialect))
    names = [name for names in backend.aliases.values() for name in names]
    text = "\n".join(f'{name}{{model_name="m"}} {value}' for name in names)
    load = backend.read_load(200, text.encode())
    assert load.num_running is None or 0 <= load.num_running <= 10**31


@pytest.mark.parametrize("output", ["5", "null", '{"a":1}', "[]", "[3]"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_text_of_triton_that_is_none_is_garbage(output, is_stream):
    backend = backend_for(ReplicaSpec(url="http://localhost:1", dialect=Dialect.TRITON))
    call = wire.Incoming(
        path="/v1/completions",
        body=b'{"model":"m","prompt":"p"}',
        is_stream=is_stream,
        request_id="r",
        created=1,
    )
    reader = backend.reader(call, {})
    said = f'{{"text_output":{output}}}'
    if is_stream:
        with pytest.raises(StreamError):
            reader.feed(f"data: {said}\n\n".encode())
        return
    reader.feed(said.encode())
    with pytest.raises(StreamError):
        reader.finish()


@pytest.mark.parametrize(
    ("told", "wanted"),
    [("STOP", "tool_calls"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter")],
)
def test_a_candidate_that_was_cut_behind_a_call_did_not_end_with_it(told, wanted):
    backend = backend_for(ReplicaSpec(url="https://x/v1beta", dialect=Dialect.VERTEX))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    call = wire.Incoming(
        path=wire.CHAT,
        body=msgspec.json.encode(body),
        is_stream=False,
        request_id="r",
        created=1,
    )
    reader = backend.reader(call, {})
    parts = [{"functionCall": {"name": "f", "args": {}}}]
    reader.feed(
        msgspec.json.encode({"candidates": [{"content": {"parts": parts}, "finishReason": told}]})
    )
    (choice,) = msgspec.json.decode(reader.finish())["choices"]
    assert choice["finish_reason"] == wanted
