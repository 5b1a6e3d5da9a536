"""Dialect → adapter: the one place that knows all of them."""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.core.errors import ConfigError
from headrace.fleet.backends.headrace import HeadraceBackend
from headrace.fleet.backends.llamacpp import LlamaCppBackend
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.sglang import SglangBackend
from headrace.fleet.backends.tgi import TgiBackend
from headrace.fleet.backends.trtllm import TrtLlmBackend
from headrace.fleet.backends.values import Backend
from headrace.fleet.backends.vllm import VllmBackend

BACKENDS: Final[Mapping[Dialect, Callable[[ReplicaSpec], Backend]]] = {
    Dialect.HEADRACE: HeadraceBackend,
    Dialect.VLLM: VllmBackend,
    Dialect.SGLANG: SglangBackend,
    Dialect.LLAMACPP: LlamaCppBackend,
    Dialect.TGI: TgiBackend,
    Dialect.TRTLLM: TrtLlmBackend,
    Dialect.OPENAI: OpenAIBackend,
}


def backend_for(spec: ReplicaSpec) -> Backend:
    """The adapter of a replica. Raises ConfigError where its settings do not make one."""
    make = BACKENDS.get(spec.dialect)
    if make is None:
        raise ConfigError(
            f"The replica '{spec.name}' has a dialect without an adapter: {spec.dialect}."
        )
    return make(spec)
