"""Dialect → adapter: the one place that knows all of them."""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.fleet.backends.anthropic import AnthropicBackend
from headrace.fleet.backends.bedrock import BedrockBackend
from headrace.fleet.backends.headrace import HeadraceBackend
from headrace.fleet.backends.llamacpp import LlamaCppBackend
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.sglang import SglangBackend
from headrace.fleet.backends.tgi import TgiBackend
from headrace.fleet.backends.triton import TritonBackend
from headrace.fleet.backends.trtllm import TrtLlmBackend
from headrace.fleet.backends.values import Backend
from headrace.fleet.backends.vertex import VertexBackend
from headrace.fleet.backends.vllm import VllmBackend

BACKENDS: Final[Mapping[Dialect, Callable[[ReplicaSpec], Backend]]] = {
    Dialect.HEADRACE: HeadraceBackend,
    Dialect.VLLM: VllmBackend,
    Dialect.SGLANG: SglangBackend,
    Dialect.LLAMACPP: LlamaCppBackend,
    Dialect.TGI: TgiBackend,
    Dialect.TRTLLM: TrtLlmBackend,
    Dialect.TRITON: TritonBackend,
    Dialect.OPENAI: OpenAIBackend,
    Dialect.ANTHROPIC: AnthropicBackend,
    Dialect.BEDROCK: BedrockBackend,
    Dialect.VERTEX: VertexBackend,
}


def backend_for(spec: ReplicaSpec) -> Backend:
    """The adapter of a replica. Raises ConfigError where its settings do not make one."""
    return BACKENDS[spec.dialect](spec)
