"""Merges of a SentencePiece BPE vocabulary, which stores only a score for each piece.

A pair of pieces may be merged where their concatenation is a piece. The piece of the best score is made
first; among pairs that make the same piece, the one whose parts have the lower ids. This is the order in
which Hugging Face writes the merges of converted SentencePiece models.
"""

from collections.abc import Collection, Sequence


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], excluded: Collection[int]
) -> list[tuple[int, int]]:
    """Pairs of token ids, the first merge first. Ids in `excluded` are never made by a merge."""
    ids = {token: number for number, token in enumerate(tokens)}
    skip = frozenset(excluded)
    made: list[tuple[float, int, list[tuple[int, int]]]] = []
    for number, token in enumerate(tokens):
        if len(token) < 2 or number in skip:
            continue
        pairs = _splits(token, ids)
        if pairs:
            made.append((-scores[number], number, pairs))
    made.sort(key=lambda entry: entry[:2])
    return [pair for _, _, pairs in made for pair in pairs]


def _splits(token: str, ids: dict[str, int]) -> list[tuple[int, int]]:
    pairs = []
    for cut in range(1, len(token)):
        left = ids.get(token[:cut])
        if left is not None:
            right = ids.get(token[cut:])
            if right is not None:
                pairs.append((left, right))
    pairs.sort()
    return pairs
