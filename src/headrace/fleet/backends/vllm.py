"""vLLM: `/health`, gauges under `vllm:` names, continuation by `continue_final_message`."""

from typing import ClassVar

from headrace.config.fleet.replicas import Dialect
from headrace.fleet.backends.gauged import RUNNING, USAGE, WAITING, GaugedBackend
from headrace.fleet.backends.prometheus import Aliases
from headrace.fleet.backends.values import Continuation


class VllmBackend(GaugedBackend):
    """The KV gauge was renamed from gpu_cache_usage_perc in 2025; some builds write `_` for `:`."""

    dialect: ClassVar = Dialect.VLLM
    keeps_responses: ClassVar = True
    chat = Continuation.TEXT
    aliases: ClassVar[Aliases] = {
        RUNNING: ("vllm:num_requests_running", "vllm_num_requests_running"),
        WAITING: ("vllm:num_requests_waiting", "vllm_num_requests_waiting"),
        USAGE: (
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "vllm_kv_cache_usage_perc",
            "vllm_gpu_cache_usage_perc",
        ),
    }
