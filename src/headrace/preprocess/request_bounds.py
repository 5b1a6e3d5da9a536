"""What a request may take beside tokens: sequences, time, and a name for its part of the prefix cache."""

from headrace.api.fields import GenerationFields
from headrace.core.errors import BadRequestError


def resolve_count(fields: GenerationFields, best_of: int | None, max_n: int) -> int:
    """Sequences to make: n, or best_of where it is more. Raises BadRequestError."""
    n = fields.n or 1
    name, count = ("n", n) if best_of is None else ("best_of", best_of)
    if count < n:
        raise BadRequestError(f"'best_of': must be at least n ({n}), not {count}.", param=name)
    if count > max_n:
        raise BadRequestError(f"'{name}': must be at most {max_n}, not {count}.", param=name)
    if count > n and fields.stream:
        raise BadRequestError(
            "'best_of': which answers are best is known when all have ended, so they cannot be streamed.",
            param=name,
        )
    return count


def resolve_timeout(timeout: float | None, limit: float) -> float:
    """Seconds from its arrival; never more than the operator's limit. Raises BadRequestError."""
    if timeout is None:
        return limit
    # Not "timeout <= 0": NaN must not pass.
    if not timeout > 0:
        raise BadRequestError(
            f"'timeout': must be more than 0 seconds, not {timeout:g}.", param="timeout"
        )
    return min(limit, timeout)


def resolve_salt(salt: str | None, tenant: bytes, *, is_trusted: bool) -> bytes:
    """No client can name a salt of a peer's, nor of another tenant's."""
    if not salt:
        return tenant
    return tenant + (b"" if is_trusted else b"client\0") + salt.encode()
