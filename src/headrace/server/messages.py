"""What a choice gained → the message of a chat answer, whole or in pieces."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from headrace.api import chat
from headrace.completion.delta import CallDelta, Delta
from headrace.core.events import FinishReason
from headrace.preprocess.reading import Reading


class MessageStyle(Struct, frozen=True, kw_only=True):
    """How the client wants to be told."""

    is_legacy: bool = False
    """Calls are a `function_call`, as before there were tools."""

    @classmethod
    def of(cls, reading: Reading) -> "MessageStyle":
        """The style of an answer that is read like this."""
        return cls(is_legacy=reading.tools is not None and reading.tools.is_legacy)

    def whole(self, delta: Delta) -> chat.ResponseMessage:
        """The message; content is null where there is none but calls or reasoning."""
        has_other = bool(delta.calls or delta.thought)
        calls = delta.calls
        return chat.ResponseMessage(
            content=None if has_other and not delta.text else delta.text,
            reasoning_content=delta.thought or UNSET,
            tool_calls=[_made(call) for call in calls] if calls and not self.is_legacy else UNSET,
            function_call=_made(calls[0]).function if calls and self.is_legacy else UNSET,
        )

    def piece(self, delta: Delta) -> chat.Delta | None:
        """What a chunk adds; None where it adds nothing to the message."""
        if not (delta.text or delta.thought or delta.calls or delta.logprobs):
            return None
        # Log-probabilities come with the text that they belong to, even where it is empty.
        is_said = delta.text or not (delta.thought or delta.calls)
        return chat.Delta(
            content=delta.text if is_said else UNSET,
            reasoning_content=delta.thought or UNSET,
            tool_calls=UNSET if self.is_legacy else _pieces(delta.calls),
            function_call=_function(delta.calls) if self.is_legacy else UNSET,
        )

    def finish_word(self, delta: Delta, word: str) -> str:
        """The end of an answer that called is its calls; one that was cut is cut all the same."""
        if delta.has_called and delta.finish is FinishReason.STOP:
            return "function_call" if self.is_legacy else "tool_calls"
        return word


def _made(call: CallDelta) -> chat.MadeCall:
    function = chat.CalledFunction(call.name or "", call.arguments)
    return chat.MadeCall(id=call.id or "", function=function)


def _pieces(calls: Sequence[CallDelta]) -> list[chat.ToolCallDelta] | UnsetType:
    made = [
        chat.ToolCallDelta(
            index=call.index,
            id=call.id if call.id is not None else UNSET,
            type="function" if call.id is not None else UNSET,
            function=_piece(call),
        )
        for call in calls
    ]
    return made or UNSET


def _function(calls: Sequence[CallDelta]) -> chat.FunctionDelta | UnsetType:
    first = [call for call in calls if call.index == 0]
    return _piece(first[0]) if first else UNSET


def _piece(call: CallDelta) -> chat.FunctionDelta:
    name = call.name if call.name is not None else UNSET
    return chat.FunctionDelta(name=name, arguments=call.arguments)
