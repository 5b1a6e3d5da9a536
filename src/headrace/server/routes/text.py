"""Text and tokens without generating: `/tokenize`, `/detokenize`, `/apply-template`, counting, `/props`."""

from contextlib import ExitStack
from urllib.parse import parse_qs

from headrace import __version__
from headrace.api.chat import ChatRequest
from headrace.api.text import (
    ContentTokens,
    Detokenized,
    DetokenizeRequest,
    GenerationSettings,
    InputTokens,
    PromptTokens,
    Props,
    Rendered,
    TokenizeChat,
    TokenizeContent,
    TokenizePrompt,
    TokenizerInfo,
)
from headrace.api.unsupported import refuse_unsupported
from headrace.core.errors import BadRequestError
from headrace.preprocess import text
from headrace.preprocess.prepare import Preparer
from headrace.server.calls import Call, answering, preparer_of
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Operation

#: Where there are several.
_MODEL = {"model": {"type": "string", "description": "Name of a model; default the first."}}
TOKENIZER_INFO = Operation(
    summary="Marks of the tokenizer, as vLLM tells them",
    tag="models",
    query=_MODEL,
    response=TokenizerInfo,
)
PROPS = Operation(
    summary="What llama.cpp's clients ask first",
    tag="models",
    description="Context length, places, chat template.",
    query=_MODEL,
    response=Props,
)


def tokenize(replica: Replica) -> App:
    """Which dialect it is, the fields tell."""

    async def answer(call: Call) -> ContentTokens | PromptTokens:
        given = call.names() & {"content", "prompt", "messages"}
        if len(given) != 1:
            raise BadRequestError(
                "Give one of 'content' (as llama.cpp has it), 'prompt' and 'messages' (as vLLM has "
                f"it); there {'are several' if given else 'is none'}.",
                param=min(given, default="prompt"),
            )
        size = len(call.body)
        if "content" in given:
            wire = call.decode(TokenizeContent)
            preparer = await call.preparer(wire.model)
            return await replica.workers.run(size, text.content_tokens, preparer, wire)
        if "prompt" in given:
            prompt = call.decode(TokenizePrompt)
            preparer = await call.preparer(prompt.model)
            return await replica.workers.run(size, text.prompt_tokens, preparer, prompt)
        chat = call.decode(TokenizeChat)
        refuse_unsupported(chat)
        preparer = await call.preparer(chat.model)
        return await replica.workers.run(size, text.chat_tokens, preparer, chat)

    return answering(replica, answer)


def detokenize(replica: Replica) -> App:
    """The text of token ids."""

    async def answer(call: Call) -> Detokenized:
        wire = call.decode(DetokenizeRequest)
        preparer = await call.preparer(wire.model)
        said = await replica.workers.run(len(call.body), text.detokenize, preparer, wire)
        return Detokenized(prompt=said, content=said)

    return answering(replica, answer)


def apply_template(replica: Replica) -> App:
    """The prompt of a conversation as text."""

    async def answer(call: Call) -> Rendered:
        wire = _chat(call)
        preparer = await call.preparer(wire.model)
        return Rendered(prompt=await replica.workers.run(len(call.body), preparer.chat_text, wire))

    return answering(replica, answer)


def input_tokens(replica: Replica) -> App:
    """How many tokens a conversation has."""

    async def answer(call: Call) -> InputTokens:
        wire = _chat(call)
        preparer = await call.preparer(wire.model)
        ids = await replica.workers.run(len(call.body), preparer.chat_ids, wire)
        return InputTokens(input_tokens=len(ids))

    return answering(replica, answer)


def tokenizer_info(replica: Replica) -> App:
    """The marks of a model's tokenizer."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        preparer = await _asked(replica, scope)
        facts = preparer.tokenizer.facts
        answer = TokenizerInfo(
            model_max_length=preparer.info.max_context,
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
            pad_token=facts.eos_token,
            chat_template=preparer.template_source,
        )
        await send_json(send, answer)

    return respond


def props(replica: Replica) -> App:
    """Facts of a model."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        preparer = await _asked(replica, scope)
        info, facts = preparer.info, preparer.tokenizer.facts
        answer = Props(
            default_generation_settings=GenerationSettings(n_ctx=info.max_context),
            total_slots=info.max_num_seqs,
            model_alias=info.names[0],
            model_path=info.names[0],
            chat_template=preparer.template_source,
            bos_token=facts.bos_token or "",
            eos_token=facts.eos_token or "",
            build_info=f"headrace {__version__}",
        )
        await send_json(send, answer)

    return respond


async def _asked(replica: Replica, scope: Scope) -> Preparer:
    """Of the model that the query names, else of the default one."""
    names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("model")
    model = next(iter(replica.models.values())) if not names else replica.find(names[-1])
    if model.preparer is None:
        with ExitStack() as held:
            await replica.obtain(model.name or None, held)
    return preparer_of(model)


def _chat(call: Call) -> ChatRequest:
    wire = call.decode(ChatRequest)
    refuse_unsupported(wire)
    return wire
