"""The routes there are. Who may call them is tested in test_api_keys.py."""

from headrace.config.server import ServerConfig
from headrace.core.clock import SystemClock
from headrace.observe.metrics import Metrics
from headrace.server.app import build_routes
from headrace.server.replica import Replica

ROUTES = {
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions/input_tokens"),
    ("POST", "/chat/completions/input_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/completion"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/score"),
    ("POST", "/score"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/rerank"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("POST", "/v1/abort"),
    ("POST", "/abort_request"),
    ("POST", "/abort_requests"),
    ("GET", "/tokenizer_info"),
    ("GET", "/props"),
    ("GET", "/v1/streams/{stream_id}"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{file_id}"),
    ("DELETE", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/models"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name:path}"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/metrics/vllm"),
    ("GET", "/metrics/genai"),
    ("GET", "/metrics/llama.cpp"),
    ("GET", "/slots"),
    ("POST", "/responses"),
    ("GET", "/load"),
    ("GET", "/timeline"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
}


def test_there_are_no_other_routes():
    replica = Replica(ServerConfig(), SystemClock(), Metrics())
    replica.workers.close()
    found = {
        (method, route.path)
        for route in build_routes(replica)
        for method in route.methods - {"HEAD"}
    }
    assert found == ROUTES
