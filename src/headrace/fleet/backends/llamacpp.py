"""llama.cpp's server: `/health`, `/slots`, a last assistant message is gone on with by itself."""

from typing import ClassVar

import msgspec

from headrace.config.fleet.replicas import Dialect
from headrace.fleet.backends import reading
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.values import CHAT, Continuation, Health, Incoming, Load, ResumePoint


class LlamaCppBackend(OpenAIBackend):
    """Load is read from `/slots` (on by default): one object a slot, `is_processing`. It tells no queue."""

    dialect: ClassVar = Dialect.LLAMACPP
    health_path: ClassVar = "/health"
    load_path: ClassVar = "/slots"
    chat = Continuation.TEXT

    def read_health(self, status: int, body: bytes) -> Health:
        """`{"status": "ok"}`, or 503 with an error object while the model loads."""
        if status == 200:
            return Health(True)
        error = reading.table(reading.table(reading.decode(body)).get("error"))
        return Health(False, reading.text(error.get("message")) or f"status {status}")

    def read_load(self, status: int, body: bytes) -> Load:
        """Older servers tell a slot's `state` (0: idle) instead."""
        slots = reading.decode(body) if status == 200 else None
        if not isinstance(slots, list) or not slots:
            return Load(missing=("num_running", "max_running"))
        busy = [_is_busy(slot) for slot in reading.tables(slots)]
        known = [state for state in busy if state is not None]
        return Load(
            num_running=sum(known) if len(known) == len(slots) else None,
            max_running=len(slots),
            missing=() if len(known) == len(slots) else ("num_running",),
        )

    def resume(self, call: Incoming, progress: ResumePoint) -> Incoming | None:
        """Its chat needs no fields for it, and refuses those that it does not know in some versions. A last message of the
        assistant that a client sent was left open too: the answer belongs to it, for it refuses two of them.
        """
        begun = _begun(call)
        going_on = super().resume(begun, progress)
        if going_on is begun:
            return call  # nothing was told: it is asked for again as it was
        if going_on is None or call.path != CHAT:
            return going_on
        body = reading.table(reading.decode(going_on.body))
        for name in ("add_generation_prompt", "continue_final_message"):
            body.pop(name, None)
        return msgspec.structs.replace(going_on, body=msgspec.json.encode(body))


def _begun(call: Incoming) -> Incoming:
    """The call, saying what this server does unasked: it goes on with a last message of the assistant."""
    body = reading.decode(call.body) if call.path == CHAT else None
    messages = reading.items(reading.table(body).get("messages"))
    if not messages or reading.table(messages[-1]).get("role") != "assistant":
        return call
    said = {**reading.table(body), "continue_final_message": True}
    return msgspec.structs.replace(call, body=msgspec.json.encode(said))


def _is_busy(slot: dict[str, object]) -> bool | None:
    busy = slot.get("is_processing")
    if isinstance(busy, bool):
        return busy
    state = reading.count(slot.get("state"))
    return None if state is None else state != 0
