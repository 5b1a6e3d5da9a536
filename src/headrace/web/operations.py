"""What a replica and a gateway both answer, for their documents: the replica does it, the gateway passes it on."""

from typing import Final

from headrace.api.chat import ChatChunk, ChatCompletion, ChatRequest
from headrace.api.completions import Completion, CompletionRequest
from headrace.api.embeddings import (
    EmbeddingList,
    EmbeddingRequest,
    Reranked,
    RerankRequest,
    ScoreList,
    ScoreRequest,
)
from headrace.api.message_events import MessageEvent
from headrace.api.messages import (
    CountTokensRequest,
    ErrorBody,
    Message,
    MessagesRequest,
    TokenCount,
)
from headrace.api.response_events import ResponseEvent
from headrace.api.responses import Response, ResponsesFields, ResponsesRequest
from headrace.api.text import (
    ContentTokens,
    Detokenized,
    DetokenizeRequest,
    InputTokens,
    PromptTokens,
    Rendered,
    TokenizeChat,
    TokenizeContent,
    TokenizePrompt,
)
from headrace.web.endpoint import Operation

_HELLO: Final = [{"role": "user", "content": "Say hello."}]

CHAT = Operation(
    summary="Answer a conversation",
    tag="generate",
    description="Through the model's chat template; whole, or as server-sent events with `stream`.",
    request=ChatRequest,
    response=ChatCompletion,
    chunk=ChatChunk,
    example={"messages": _HELLO, "max_tokens": 8},
)
COMPLETE = Operation(
    summary="Continue a text",
    tag="generate",
    description="One text, one list of token ids, or several of either; whole or as a stream.",
    request=CompletionRequest,
    response=Completion,
    chunk=Completion,
    example={"prompt": ["Once upon a time", "In the end"], "max_tokens": 8},
)
RESPOND = Operation(
    summary="Make a response",
    tag="responses",
    description=(
        "Whole, as named server-sent events with `stream`, or later with `background`. Goes on from a stored "
        "response with `previous_response_id`."
    ),
    request=ResponsesRequest,
    response=Response,
    chunk=ResponseEvent,
    example={"input": "Say hello.", "max_output_tokens": 8},
)
COUNT_RESPONSE = Operation(
    summary="Count the tokens of a response's input",
    tag="responses",
    request=ResponsesFields,
    response=InputTokens,
    example={"input": "Say hello."},
)
MESSAGE = Operation(
    summary="Answer a conversation, as Anthropic has it",
    tag="generate",
    description=(
        "Whole, or as named server-sent events with `stream`. Errors under this path are Anthropic's objects."
    ),
    request=MessagesRequest,
    response=Message,
    chunk=MessageEvent,
    error=ErrorBody,
    example={"messages": _HELLO, "max_tokens": 8},
)
COUNT_MESSAGE = Operation(
    summary="Count the tokens of a conversation, as Anthropic has it",
    tag="text",
    request=CountTokensRequest,
    response=TokenCount,
    error=ErrorBody,
    example={"messages": _HELLO},
)
EMBED = Operation(
    summary="Make vectors of texts",
    tag="embed",
    description="One text, several, or their token ids; vectors as numbers or as base64.",
    request=EmbeddingRequest,
    response=EmbeddingList,
    example={"input": ["Once upon a time", "In the end"]},
)
SCORE = Operation(
    summary="Score pairs of texts",
    tag="embed",
    description="By the model's classification head, or by the cosine of the texts' vectors.",
    request=ScoreRequest,
    response=ScoreList,
    example={"text_1": "What is a headrace?", "text_2": ["A channel.", "A cat."]},
)
RERANK = Operation(
    summary="Order documents by how well they answer a query",
    tag="embed",
    description="The scores are those of `/v1/score`.",
    request=RerankRequest,
    response=Reranked,
    example={"query": "What is a headrace?", "documents": ["A cat.", "A channel."]},
)
TOKENIZE = Operation(
    summary="Text to token ids",
    tag="text",
    description=(
        "`content` is answered as llama.cpp does, `prompt` and `messages` as vLLM and SGLang do."
    ),
    request=(TokenizeContent, TokenizePrompt, TokenizeChat),
    response=(ContentTokens, PromptTokens),
    example={"prompt": "Once upon a time"},
)
DETOKENIZE = Operation(
    summary="Token ids to text",
    tag="text",
    request=DetokenizeRequest,
    response=Detokenized,
    example={"tokens": [72, 105]},
)
APPLY_TEMPLATE = Operation(
    summary="Show the prompt that the chat template makes",
    tag="text",
    description="As llama.cpp's server has it.",
    request=ChatRequest,
    response=Rendered,
    example={"messages": _HELLO},
)
COUNT_CHAT = Operation(
    summary="Count the tokens of a conversation",
    tag="text",
    request=ChatRequest,
    response=InputTokens,
    example={"messages": _HELLO},
)

#: By path; all are POSTs.
BY_PATH: Final = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETE,
    "/v1/responses": RESPOND,
    "/v1/messages": MESSAGE,
    "/v1/embeddings": EMBED,
    "/v1/score": SCORE,
    "/score": SCORE,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/chat/completions/input_tokens": COUNT_CHAT,
    "/v1/responses/input_tokens": COUNT_RESPONSE,
    "/v1/messages/count_tokens": COUNT_MESSAGE,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/apply-template": APPLY_TEMPLATE,
}
