"""A request's wishes for its answer's text."""

from headrace.api.completions import CompletionRequest
from headrace.api.fields import GenerationFields
from headrace.completion.choice import TextOptions
from headrace.preprocess.reading import Reading


def text_options(
    request: GenerationFields,
    *,
    stands_alone: bool,
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> TextOptions:
    """How the tokens of the answer become text. `stands_alone`: it continues no text of the client's."""
    echoes, best_of = False, None
    if isinstance(request, CompletionRequest):
        echoes, best_of = bool(request.echo), request.best_of
    return TextOptions(
        reading=reading,
        include_stop=bool(request.include_stop_str_in_output),
        skip_special=request.skip_special_tokens is not False,
        strips_space=stands_alone,
        echoes=echoes,
        # Who is continued has told of the prompt with its first token.
        tells_prompt=not request.prior_output_ids
        and (echoes or bool(request.return_token_ids) or request.prompt_logprobs is not None),
        num_best=0 if best_of is None else request.n or 1,
    )
