"""Names in a fleet's file that must mean something in it: a slip in one would let more through than is meant."""

from collections.abc import Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase


def no_such(what: str, name: str, known: Collection[str]) -> str:
    """The sentence for a name that is none of those that are known."""
    near = get_close_matches(name, known, n=1)
    hint = (
        f"the nearest is '{near[0]}'"
        if near
        else f"there are {', '.join(list(known)[:20]) or 'none'}"
    )
    return f"There is no {what} '{name[:60]}'; {hint}."


def may_fit(pattern: str, names: Collection[str], prefixes: Collection[str]) -> bool:
    """A pattern of tools, with * for any text, fits one of the names, or may fit one that begins with a prefix."""
    if any(fnmatchcase(name, pattern) for name in names):
        return True
    # What stands in front of the first sign for any text; behind it anything may come.
    fixed = pattern[
        : min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))
    ]
    if fixed == pattern:
        return any(pattern.startswith(prefix) and pattern != prefix for prefix in prefixes)
    return any(fixed.startswith(prefix) or prefix.startswith(fixed) for prefix in prefixes)
