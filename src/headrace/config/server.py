"""How one replica's HTTP process behaves. Every bound is finite by default."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from headrace.config.batches import BatchConfig
from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.config.tracing import TracingConfig
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaRole


class LongPrompt(StrEnum):
    """What happens to a prompt that does not fit the context."""

    REJECT = "reject"
    TRUNCATE = "truncate"
    """Keep the end of the prompt."""


class Dialect(StrEnum):
    """Whose habits count where clients need different ones and a request does not tell them apart."""

    OPENAI = "openai"
    LLAMA_CPP = "llama.cpp"
    """Chat streams begin with null content; `/completion` samples by llama.cpp's defaults."""
    VLLM = "vllm"
    """`/sleep`, `/wake_up` and `/is_sleeping`, for the control token."""


class MetricsNames(StrEnum):
    """Names on `/metrics`."""

    HEADRACE = "headrace"
    BOTH = "both"
    """vLLM's names too."""
    ALL = "all"
    """And llama.cpp's."""


class ToolFormat(StrEnum):
    """How a model writes calls of tools."""

    AUTO = "auto"
    """Told from the model's chat template."""
    NONE = "none"
    """Calls are not looked for; required and named ones are refused."""
    HERMES = "hermes"
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`: Qwen, Hermes, SmolLM3 and many others."""
    SMOLLM2 = "smollm2"
    """`<tool_call>[{"name": …, "arguments": …}, …]</tool_call>`."""
    LLAMA3_JSON = "llama3_json"
    """`{"name": …, "parameters": …}`."""
    PYTHONIC = "pythonic"
    """`[name(key=value), …]`: Llama 3.2 and 4."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS][{"name": …, "arguments": …}, …]`."""
    MISTRAL_ARGS = "mistral_args"
    """`[TOOL_CALLS]name[ARGS]{…}`: Mistral since v11."""
    FUNCTIONGEMMA = "functiongemma"
    """`<start_function_call>call:name{…}<end_function_call>`."""
    GPT_OSS = "gpt_oss"
    """The commentary channel of Harmony."""


class ReasoningFormat(StrEnum):
    """How a model marks what it thinks before it answers."""

    AUTO = "auto"
    """Told from the model's chat template."""
    NONE = "none"
    """All text is the answer."""
    THINK = "think"
    """`<think>…</think>`: DeepSeek R1, Qwen 3, SmolLM3 and many others."""
    GPT_OSS = "gpt_oss"
    """The analysis channel of Harmony."""


class ServerConfig(Struct, frozen=True, kw_only=True):
    """One replica's HTTP process."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one and prints it."""
    listen_fd: Annotated[int, Meta(ge=0)] | None = None
    """A listening socket that whoever starts the server hands on, as a file descriptor, instead of host and port."""
    grpc_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port for gRPC beside HTTP, which needs headrace[grpc]; 0 takes a free one and prints it; none: no gRPC."""
    max_grpc_calls: Annotated[int, Meta(ge=1)] = 128
    """Calls of gRPC that may run; more are answered RESOURCE_EXHAUSTED."""
    max_grpc_message_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 4 * 1024 * 1024
    """Largest message of gRPC; each call that runs may hold one."""
    role: ReplicaRole = ReplicaRole.BOTH
    """both, prefill or decode: told to routers in /load, which send work by it; the server takes any."""
    max_queued_requests: Annotated[int, Meta(ge=0)] = 256
    """Requests that may wait; more are answered 429."""
    max_queued_tokens: Annotated[int, Meta(ge=0)] = 262_144
    """Prompt tokens that may wait (estimated from bytes before tokenising); more are answered 429."""
    max_queue_time: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 60.0
    """Seconds that a request may wait for its first step."""
    request_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 600.0
    """Seconds that a request may take in all."""
    default_max_tokens: Annotated[int, Meta(ge=1)] = 1024
    """Output bound of a request that sets none."""
    max_body_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 16 * 1024 * 1024
    """Largest request body."""
    max_buffered_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 128 * 1024 * 1024
    """Bytes of all request bodies that are being read or prepared; more are answered 429."""
    max_header_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 64 * 1024
    """Largest request line and headers together; more are answered 431."""
    max_headers: Annotated[int, Meta(ge=8)] = 100
    """Headers that a request may have; more are answered 431."""
    max_json_depth: Annotated[int, Meta(ge=8, le=500)] = 100
    """Lists and objects inside each other that a body may have."""
    resume_window: Annotated[int, Meta(ge=0, extra={"unit": "bytes"})] = 0
    """Last bytes of each stream that are kept for a client that was cut off (Last-Event-ID), such as 256KiB.
    0: streams end with their connection."""
    resume_linger: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 30.0
    """Seconds that a stream waits for its client to come back, and that it is kept after its end."""
    max_resumable_streams: Annotated[int, Meta(ge=1)] = 256
    """Streams that are kept at once; more cannot be resumed."""
    max_stored_responses: Annotated[int, Meta(ge=0)] = 1024
    """Responses of /v1/responses that are kept to be asked for and gone on from; 0 keeps none."""
    max_stored_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 64 * 1024 * 1024
    """Bytes of all kept responses with their conversations; the API key that has most gives up its oldest."""
    stored_response_ttl: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 3600.0
    """Seconds after which a kept response is forgotten."""
    accept_any_model: bool = False
    """Let the only model answer under any name that a request gives, instead of 404 for others."""
    strict: bool = False
    """Refuse requests with fields that are not known here, and those that name no model, as OpenAI does."""
    max_connections: Annotated[int, Meta(ge=1)] = 1000
    """Connections that may be open; requests on more, probes aside, are answered 503."""
    read_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 30.0
    """Seconds in which a request, headers and body, must arrive; else it is answered 408."""
    max_socket_requests: Annotated[int, Meta(ge=1)] = 64
    """Requests that one WebSocket may have running; more are answered with the error of a 429."""
    stall_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 30.0
    """Seconds that a client may stop reading its answer before it is cut off and its place given away."""
    max_n: Annotated[int, Meta(ge=1)] = 16
    """Largest n of one request."""
    long_prompt: LongPrompt = LongPrompt.REJECT
    """reject or truncate prompts that do not fit."""
    tool_call_parser: ToolFormat = ToolFormat.AUTO
    """Format of tool calls: auto, none, hermes, smollm2, llama3_json, pythonic, mistral, mistral_args,
    functiongemma or gpt_oss."""
    reasoning_parser: ReasoningFormat = ReasoningFormat.AUTO
    """Format of reasoning before an answer: auto, none, think or gpt_oss."""
    tokenizer_threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Threads that apply templates and tokenise."""
    grammar_processes: Annotated[int, Meta(ge=1, le=64)] = 2
    """Processes that try out schemas and grammars; they start when the first one comes."""
    grammar_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 5.0
    """Seconds that compiling a schema or grammar may take; longer ones are answered 400."""
    drain_timeout: Annotated[float, Meta(ge=0.0, extra={"unit": "seconds"})] = 30.0
    """Seconds that running requests get after SIGTERM."""
    watchdog_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 60.0
    """Seconds without a finished step, while work is pending, after which the engine is restarted; with
    chunked_prefill off, for each 512 tokens of the longest prompt."""
    trusted_peer_token: Secret | None = None
    """Secret that a gateway sends in `x-headrace-peer`, for token ids, continuation and salts of its own."""
    kv_events: (
        Annotated[
            str,
            Meta(
                pattern="^(tcp|ipc|inproc)://.+",
                extra={"expected": "an endpoint such as tcp://127.0.0.1:5557"},
            ),
        ]
        | None
    ) = None
    """ZeroMQ endpoint on which stored and removed blocks are published, such as tcp://127.0.0.1:5557."""
    kv_events_topic: str = ""
    """Topic of those messages; routers want names such as kv@POD@MODEL."""
    kv_events_as_maps: bool = False
    """Send each KV event as a map, as vLLM does since June 2026, instead of an array."""
    dialect: Dialect = Dialect.OPENAI
    """openai; llama.cpp: chat streams begin with null content, /completion has llama.cpp's default sampling;
    vllm: /sleep, /wake_up and /is_sleeping, for those who have the control token."""
    metrics_names: MetricsNames = MetricsNames.HEADRACE
    """Names on /metrics: headrace, both to add vLLM's, all to add llama.cpp's too."""
    timeline_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 2000
    """Last steps, and as many sequences, that are kept of each engine for /timeline; 0 keeps none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text or json."""
    security: SecurityConfig = SecurityConfig()
    batches: BatchConfig = BatchConfig()
    tracing: TracingConfig = TracingConfig()

    def __post_init__(self) -> None:
        """Raises ConfigError for settings that contradict each other."""
        if self.max_body_bytes > self.max_buffered_bytes:
            raise ConfigError(
                f"max_body_bytes ({self.max_body_bytes}) is more than max_buffered_bytes "
                f"({self.max_buffered_bytes}): the largest body could never come in."
            )
