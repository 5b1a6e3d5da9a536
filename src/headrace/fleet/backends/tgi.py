"""Hugging Face's text-generation-inference by its OpenAI routes: `/health`, gauges under `tgi_` names."""

from typing import ClassVar

from headrace.config.fleet.replicas import Dialect
from headrace.fleet.backends.gauged import RUNNING, WAITING, GaugedBackend
from headrace.fleet.backends.prometheus import Aliases


class TgiBackend(GaugedBackend):
    """It tells no KV usage. Errors are `{"error": text, "error_type": name}`."""

    dialect: ClassVar = Dialect.TGI
    aliases: ClassVar[Aliases] = {
        RUNNING: ("tgi_batch_current_size",),
        WAITING: ("tgi_queue_size",),
    }
