"""The beams of one request: who they are, what their rows gave, and what follows when all have given it.

A beam is a sequence. The sequences of a request are its beams, or HELD while there are fewer. At each length
all beams wait for each other; then one child of a beam goes on in its place, and other children are taken
over by held sequences, which fork the beam's blocks (copy-on-write) when the planner starts them.
"""

from msgspec.structs import replace

from headrace.core.beams import MAX_BEAM_STOPS, MAX_BEAMS, BeamSearch
from headrace.core.errors import BadRequestError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.admission import admission_margin
from headrace.engine.scheduler.beam_search import (
    Answer,
    Extension,
    extensions,
    is_over,
    keep_best,
    penalised,
    split,
)
from headrace.engine.scheduler.roster import Roster
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup


class Beam:
    """One of the likeliest outputs so far."""

    __slots__ = ("life", "logprobs", "report", "score", "sequence")

    def __init__(
        self, sequence: Sequence, score: float, logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        self.sequence = sequence
        self.score = score
        self.logprobs = logprobs
        """Of its tokens, where the request wants them."""
        self.report: TokenLogprobs | None = None
        self.life = -1
        """The life of the sequence in which `report` came: after preemption it comes anew."""

    @property
    def is_ready(self) -> bool:
        """Its continuations are known, and so are its keys and values."""
        return self.report is not None and self.life == self.sequence.life


class BeamGroup:
    """State of one request's search; `go_on` carries out what it decides."""

    def __init__(self, group: SequenceGroup, search: BeamSearch) -> None:
        """The group has its sequences already; the first of them computes the prompt."""
        self._group = group
        self._search = search
        params = group.request.params
        self._num_logprobs = params.logprobs
        self._masked = frozenset(group.mask_ids)
        self.beams = [Beam(group.sequences[0], 0.0, ())]
        """Best first."""
        self.answers: list[Answer] = []
        """Best first, at most `width`."""
        self.open_outputs = set(range(group.request.n))
        """Outputs that the reader still waits for."""

    def take(self, sequence: Sequence, report: TokenLogprobs, now: float) -> None:
        """What a beam's row gave. All of one length are decided on together."""
        for beam in self.beams:
            if beam.sequence is sequence:
                beam.report, beam.life = report, sequence.life
        if sequence.first_token_at is None:
            for member in self._group.sequences:  # each of them may carry an output in the end
                member.first_token_at = now

    @property
    def is_ready(self) -> bool:
        """Every beam knows its continuations."""
        return all(beam.is_ready for beam in self.beams)

    def decide(self) -> list[Extension]:
        """Which children go on, best first; none when the search is over. Ended ones become answers."""
        group, search = self._group, self._search
        length = self._length + 1
        masked = self._masked if self._length < group.request.params.min_tokens else frozenset()
        reports = [beam.report for beam in self.beams if beam.report is not None]
        found = extensions([beam.score for beam in self.beams], reports, masked)
        max_length = group.max_total - group.num_prompt
        is_last = length >= max_length
        going, ending = split(found, group.stop_ids, search.width, is_last=is_last)
        ended = [self._answer(extension, length) for extension in ending]
        self.answers = keep_best(self.answers, ended, search.width)
        best_score = going[0].score if going else None
        return [] if is_over(search, self.answers, best_score, length, max_length) else going

    def replace_beams(self, children: list[tuple[Sequence, Extension]]) -> None:
        """These are the beams now, best first; their sequences hold their tokens already."""
        self.beams = [
            Beam(sequence, extension.score, self._extended(extension))
            for sequence, extension in children
        ]

    def cancel(self, index: int) -> list[TokenEvent] | None:
        """One of the n outputs is not wanted: its end; None when it is the last, and all may end."""
        if index not in self.open_outputs:
            return []
        if len(self.open_outputs) == 1:
            return None
        self.open_outputs.discard(index)
        return [TokenEvent(self._group.request.request_id, index, finish=FinishReason.CANCELLED)]

    def outputs_at(self, reason: FinishReason) -> list[Answer]:
        """The best n answers, if it ends for such a reason; where too few have ended, with beams cut short."""
        if reason not in (FinishReason.STOP, FinishReason.TIMEOUT):
            return []
        n = self._group.request.n
        if len(self.answers) >= n:
            return self.answers[:n]
        cut = [self._cut(beam) for beam in self.beams] if self._length else []
        return keep_best(self.answers, cut, n)

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _length(self) -> int:
        return self.beams[0].sequence.num_outputs

    def _answer(self, extension: Extension, length: int) -> Answer:
        beam = self.beams[extension.parent]
        is_stop = extension.token_id in self._group.stop_ids
        return Answer(
            penalised(extension.score, length, self._search.length_penalty),
            (*self._outputs_of(beam), extension.token_id),
            self._extended(extension),
            FinishReason.STOP if is_stop else FinishReason.LENGTH,
            extension.token_id if is_stop else None,
        )

    def _cut(self, beam: Beam) -> Answer:
        score = penalised(beam.score, self._length, self._search.length_penalty)
        return Answer(score, self._outputs_of(beam), beam.logprobs, FinishReason.TIMEOUT, None)

    def _outputs_of(self, beam: Beam) -> tuple[int, ...]:
        return tuple(beam.sequence.tokens[self._group.num_prompt :])

    def _extended(self, extension: Extension) -> tuple[TokenLogprobs, ...]:
        beam = self.beams[extension.parent]
        if self._num_logprobs is None or beam.report is None:
            return ()
        top = beam.report.top[: self._num_logprobs]
        entry = TokenLogprobs(extension.token_id, extension.logprob, extension.rank, top)
        return (*beam.logprobs, entry)


def begin_search(group: SequenceGroup, search: BeamSearch) -> None:
    """The request of this group, whose sequences are there, is a search.

    Its rows report enough continuations to decide on: a beam has at most `width` children that go on, and no
    more of its continuations end it than there are stop tokens.
    """
    params = group.request.params
    num_stops = len(group.stop_ids.union(group.mask_ids))
    count = max(search.width + num_stops, params.logprobs or 0)
    group.row_params = replace(params, temperature=0.0, min_tokens=0, logprobs=count)
    group.beams = BeamGroup(group, search)
    # Its held sequences wait for something to become, not for the prompt.
    group.is_prompt_computed = True


def go_on(beams: BeamGroup, children: list[Extension], roster: Roster) -> None:
    """The first child of a beam goes on in its place; the others go to held sequences, which will fork it."""
    parents = [beam.sequence for beam in beams.beams]
    first_child = {extension.parent: extension for extension in reversed(children)}
    for index, sequence in enumerate(parents):
        if index not in first_child:
            roster.hold(sequence)
    held = iter(parents[0].group.held())
    next_beams: list[tuple[Sequence, Extension]] = []
    for extension in children:
        parent = parents[extension.parent]
        sequence = parent if extension is first_child[extension.parent] else next(held)
        next_beams.append((sequence, extension))
    for sequence, extension in next_beams:
        if sequence is not parents[extension.parent]:
            # Before its parent gets a token of its own.
            sequence.adopt(parents[extension.parent], extension.token_id)
            sequence.num_cached = parents[0].num_cached
            roster.enqueue(sequence)
    beams.replace_beams(next_beams)
    for sequence, extension in next_beams:
        if sequence is parents[extension.parent]:
            sequence.tokens.append(extension.token_id)


def beam_refusal(
    request: Request, ledger: KVLedger, max_running: int, room: int
) -> BadRequestError | None:
    """Why this search cannot run here, however long it waits; None when it can, or is none."""
    search = request.beams
    if search is None:
        return None
    if not request.n <= search.width <= min(MAX_BEAMS, max_running):
        return BadRequestError(
            f"A search has at least n and at most {min(MAX_BEAMS, max_running)} beams here, not "
            f"{search.width}.",
            param="beam_width",
        )
    if len({*request.eos_token_ids, *request.params.stop_token_ids}) > MAX_BEAM_STOPS:
        return BadRequestError(
            f"A search takes at most {MAX_BEAM_STOPS} stop tokens, the model's own included.",
            param="stop_token_ids",
        )
    if request.grammar is not None or request.prior_output_ids:
        return BadRequestError("A search has no grammar and begins with the prompt.")
    size = ledger.block_size
    num_tokens = min(request.num_prompt_tokens + request.params.max_tokens, room)
    # Full blocks of the prompt are shared, for certain only where they can be found again.
    shared = request.num_prompt_tokens // size if ledger.has_prefix_cache else 0
    num_blocks = shared + search.width * (-(-num_tokens // size) - shared + 1)
    if num_blocks + admission_margin(ledger) > ledger.smallest_group:
        return BadRequestError(
            f"{search.width} beams of {num_tokens} tokens need {num_blocks} KV blocks, but there are "
            f"{ledger.smallest_group}: ask for fewer beams or fewer tokens.",
            param="beam_width",
        )
    return None
