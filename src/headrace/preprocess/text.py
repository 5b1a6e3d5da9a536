"""What the text endpoints compute. May run on any thread; raises BadRequestError for what cannot be done."""

from headrace.api.text import (
    ContentTokens,
    DetokenizeRequest,
    Piece,
    PromptTokens,
    TokenizeChat,
    TokenizeContent,
    TokenizePrompt,
)
from headrace.core.errors import BadRequestError
from headrace.preprocess.params import check_token_ids
from headrace.preprocess.prepare import Preparer
from headrace.preprocess.special_text import free_mark
from headrace.preprocess.tokenizer import Tokenizer


def content_tokens(preparer: Preparer, request: TokenizeContent) -> ContentTokens:
    """llama.cpp's: items of a list are tokenised one by one, and ids are taken as they are."""
    content, tokenizer = request.content, preparer.tokenizer
    ids: list[int] = []
    for item in [content] if isinstance(content, str) else content:
        if isinstance(item, str):
            ids += _encode(tokenizer, item, has_special=request.parse_special is not False)
        else:
            check_token_ids("content", [item], preparer.info.vocab_size)
            ids.append(item)
    if request.add_special:
        ids = [*preparer.with_prefix(ids), *tokenizer.facts.suffix_ids]
    if not request.with_pieces:
        return ContentTokens(tokens=[*ids])
    return ContentTokens(tokens=[Piece(number, _piece(tokenizer, number)) for number in ids])


def prompt_tokens(preparer: Preparer, request: TokenizePrompt) -> PromptTokens:
    """vLLM's: what a completion of this text begins with, however long it is."""
    ids = preparer.tokenizer.encode(request.prompt, add_special=False)
    if request.add_special_tokens is not False:
        ids = [*preparer.with_prefix(ids), *preparer.tokenizer.facts.suffix_ids]
    return _told(preparer, ids, with_texts=bool(request.return_token_strs))


def chat_tokens(preparer: Preparer, request: TokenizeChat) -> PromptTokens:
    """vLLM's: what an answer to this conversation begins with, however long it is."""
    ids = preparer.chat_ids(request)
    return _told(preparer, ids, with_texts=bool(request.return_token_strs))


def detokenize(preparer: Preparer, request: DetokenizeRequest) -> str:
    """The text; special tokens are spelt out unless they are to be left out."""
    check_token_ids("tokens", request.tokens, preparer.info.vocab_size)
    return preparer.tokenizer.decode(request.tokens, skip_special=bool(request.skip_special_tokens))


def _told(preparer: Preparer, ids: list[int], *, with_texts: bool) -> PromptTokens:
    table = preparer.tokenizer.all_bytes
    texts = [table[number].decode("utf-8", "replace") for number in ids] if with_texts else None
    return PromptTokens(
        count=len(ids), max_model_len=preparer.info.max_context, tokens=ids, token_strs=texts
    )


def _encode(tokenizer: Tokenizer, text: str, *, has_special: bool) -> list[int]:
    special = tokenizer.special_tokens
    if has_special or not special.are_in(text):
        return tokenizer.encode(text, add_special=False)
    mark = free_mark(text)
    if mark is None:
        raise BadRequestError("'content' holds every Unicode noncharacter.", param="content")
    return tokenizer.encode_marked(special.disarm(text, mark), mark, add_special=False)


def _piece(tokenizer: Tokenizer, number: int) -> str | list[int]:
    spelt = tokenizer.all_bytes[number]
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
