"""What operators ask for at /admin and with `headrace fleet`: plain functions on values, errors as exceptions."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from headrace.api.decode import decode
from headrace.core.errors import BadRequestError, ConfigError, NotFoundError
from headrace.fleet.gateway.accounts.account import NewKey
from headrace.fleet.gateway.accounts.usage import (
    UsageReader,
    UsageSum,
    filter_of,
    format_of,
    groups_of,
    head,
    written,
)


def read_new_key(body: bytes) -> NewKey:
    """A body of `POST /admin/keys`. Raises BadRequestError that names the field."""
    try:
        return decode(body, NewKey)
    except ConfigError as error:
        raise BadRequestError(str(error), param="limits") from None


async def usage_sums(reader: UsageReader | None, query: Mapping[str, str]) -> list[UsageSum]:
    """`by`, `since`, `until`, `key`, `tenant`, `model`. Raises BadRequestError, or NotFoundError without a ledger."""
    rows, by = filter_of(query), groups_of(query.get("by", ""))
    return await asyncio.to_thread(_there(reader).sums, rows, by)


async def usage_export(
    reader: UsageReader | None, query: Mapping[str, str]
) -> AsyncGenerator[str, None]:
    """The rows as text, piece by piece; `format` is jsonl or csv, the rest as for sums. Raises before the first piece."""
    rows, form = filter_of(query), format_of(query.get("format", "jsonl"))
    there, after = _there(reader), 0
    yield head(form)
    while page := await asyncio.to_thread(there.page, rows, after):
        after = page[-1][0]
        yield written([row for _, row in page], form)


def _there(reader: UsageReader | None) -> UsageReader:
    if reader is None:
        raise NotFoundError("There is no ledger: accounts.directory is not set.")
    return reader
