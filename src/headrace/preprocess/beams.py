"""Beam search: what a request asks for, and what does not go with it."""

from typing import Any, Final

from msgspec import structs

from headrace.api.fields import GenerationFields
from headrace.core.beams import MAX_BEAM_STOPS, MAX_BEAMS, BeamSearch, EarlyStopping
from headrace.core.errors import BadRequestError
from headrace.core.sampling import SamplingParams

#: Field → the value that asks for nothing. They change which continuation is likely; a search weighs those
#: of the model itself.
_WEIGHING: Final[dict[str, Any]] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "dry_multiplier": 0.0,
    "logit_bias": {},
    "allowed_token_ids": [],
    "bad_words": [],
}
_NEEDS_SEARCH: Final = "is for beam search: set 'use_beam_search' to true"
_STOPPING: Final = {True: EarlyStopping.FULL, False: EarlyStopping.HEURISTIC}


def read_beams(fields: GenerationFields) -> BeamSearch | None:
    """The search that a request asks for; None when it asks for none. Raises BadRequestError."""
    width = _width(fields)
    if width is None:
        if fields.length_penalty not in (None, 1.0):
            raise _fault("length_penalty", _NEEDS_SEARCH)
        if fields.early_stopping:
            raise _fault("early_stopping", _NEEDS_SEARCH)
        return None
    if not 1 <= width <= MAX_BEAMS:
        raise _fault(_width_name(fields), f"must be between 1 and {MAX_BEAMS}, not {width}")
    if width < (fields.n or 1):
        raise _fault("n", f"must be at most the number of beams ({width}), not {fields.n}")
    penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    # Not "penalty < -10": NaN must not pass.
    if not -10.0 <= penalty <= 10.0:
        raise _fault("length_penalty", f"must be between -10 and 10, not {penalty:g}")
    early = fields.early_stopping
    return BeamSearch(
        width=width,
        length_penalty=penalty,
        early_stopping=EarlyStopping.NEVER if early == "never" else _STOPPING[bool(early)],
    )


def for_search(
    fields: GenerationFields, params: SamplingParams, num_ends: int, *, has_grammar: bool
) -> SamplingParams:
    """The parameters of a request that searches: nothing is drawn, so what shapes draws has no effect.

    `num_ends` counts the model's own end tokens. Raises BadRequestError for what would change which outputs
    are the likeliest, and is not weighed.
    """
    _refuse_weighed(fields)
    if params.stop:
        raise _clash("stop")
    if params.stop_regex:
        raise _clash("stop_regex")
    if has_grammar:
        raise _clash("response_format", "structured output and forced tool calls")
    if getattr(fields, "best_of", None) is not None:
        raise _clash("best_of")
    if params.max_tokens == 0:
        raise _fault("max_tokens", "must be at least 1 with beam search")
    if params.thinking is not None:
        raise _clash("thinking_budget")
    if fields.prior_output_ids:
        raise _clash("prior_output_ids")
    if num_ends + len(params.stop_token_ids) > MAX_BEAM_STOPS:
        raise _fault(
            "stop_token_ids",
            f"a beam search takes at most {MAX_BEAM_STOPS}, the model's own included",
        )
    # The model's own defaults for sampling are no wish of the client's.
    return structs.replace(
        params, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0
    )


def _refuse_weighed(fields: GenerationFields) -> None:
    for name, nothing in _WEIGHING.items():
        if getattr(fields, name) not in (None, nothing):
            raise _clash(name)


def _width(fields: GenerationFields) -> int | None:
    wide, beams = fields.beam_width, fields.num_beams
    if wide is not None and beams is not None and wide != beams:
        raise _fault("num_beams", f"says {beams} and 'beam_width' {wide}; give one of them")
    width = wide if wide is not None else beams
    if fields.use_beam_search:
        return width if width is not None else fields.n or 1
    if width is None or (width == 1 and fields.use_beam_search is None):
        return None
    if fields.use_beam_search is False:
        raise _fault("use_beam_search", "is false, but a number of beams is given")
    return width


def _width_name(fields: GenerationFields) -> str:
    if fields.beam_width is not None:
        return "beam_width"
    return "n" if fields.num_beams is None else "num_beams"


def _clash(name: str, what: str = "") -> BadRequestError:
    return _fault(name, f"{what or 'this'} cannot be combined with beam search")


def _fault(name: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{name}': {what}.", param=name)
