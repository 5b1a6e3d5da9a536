"""Forms with a file: read in any pieces, in bounded memory; what is wrong with them is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadRequestError, BodyTooLargeError, UnsupportedMediaError
from headrace.server.batches.upload import MAX_FIELD, MAX_PARTS, receive_file

FORM = {"headers": [(b"content-type", b"multipart/form-data; boundary=XX")]}
FILE = b'Content-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s'
FIELD = b'Content-Disposition: form-data; name="%s"\r\n\r\n%s'


def form(*parts):
    return b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts) + b"--XX--\r\n"


async def send(path, body, *, sizes=(10**9,), scope=FORM, max_bytes=10**6):
    pieces = []
    while body:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(body[:size])
        body = body[size:]
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces or [b""], 1)
    ]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return await receive_file(dict(scope), receive, path, max_bytes)


@given(st.binary(max_size=3000), st.lists(st.integers(1, 700), min_size=1, max_size=5))
async def test_a_file_arrives_whole_in_any_pieces(tmp_path_factory, content, sizes):
    if b"\r\n--XX" in content:
        return
    path = tmp_path_factory.getbasetemp() / "arrived"
    body = form(FIELD % (b"purpose", b"batch"), FILE % (b"a.jsonl", content), FIELD % (b"x", b""))
    found = await send(path, body, sizes=sizes)
    assert path.read_bytes() == content
    assert found == {"purpose": "batch", "x": ""}
    assert found.filename == "a.jsonl"


async def test_a_large_file_is_not_kept_in_memory(tmp_path):
    content = bytes(range(256)) * 8000
    await send(tmp_path / "f", form(FILE % (b"x", content)), sizes=(65536,), max_bytes=10**7)
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"../../etc/passwd", "passwd"), (b"C:\\x\\y.jsonl", "y.jsonl"), (b"", "file")],
)
async def test_a_file_has_a_name_and_no_path(tmp_path, name, shown):
    found = await send(tmp_path / "f", form(FILE % (name, b"x")))
    assert found.filename == shown


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "too early"),
        (form(FILE % (b"x", b"y"))[:-8], "too early"),
        (b"no form at all", "no valid form"),
        (form(FIELD % (b"purpose", b"batch")), "'file' is required"),
        (form(FILE % (b"x", b"y"), FILE % (b"x", b"y")), "several files"),
        (form((FILE % (b"x", b"y")).replace(b'"file"', b'"fail"')), "field 'file'"),
        (form(*[FIELD % (b"a", b"")] * (MAX_PARTS + 1)), "parts"),
        (form(FIELD % (b"purpose", b"x" * (MAX_FIELD + 1))), "'purpose' has more"),
        (
            form(
                b"X: "
                + b"y" * 3000
                + b"\r\nY: "
                + b"y" * 3000
                + b"\r\nZ: "
                + b"y" * 3000
                + b"\r\n\r\n"
            ),
            "headers",
        ),
    ],
)
async def test_what_is_no_good_is_said(tmp_path, body, word):
    with pytest.raises(BadRequestError, match=word):
        await send(tmp_path / "f", body)


async def test_a_file_that_is_too_large_is_given_up_at_once(tmp_path):
    with pytest.raises(BodyTooLargeError) as caught:
        await send(tmp_path / "f", form(FILE % (b"x", b"y" * 101)), max_bytes=100)
    assert caught.value.param == "file"


@pytest.mark.parametrize(
    "kind",
    [b"", b"application/json", b"multipart/form-data", b"multipart/mixed; boundary=XX", b"\xff"],
)
async def test_other_content_is_refused(tmp_path, kind):
    with pytest.raises(UnsupportedMediaError):
        await send(tmp_path / "f", b"x", scope={"headers": [(b"content-type", kind)]})


async def test_a_client_that_leaves_is_no_error(tmp_path):
    messages = [{"type": "http.request", "body": b"--XX\r\n", "more_body": True}]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    assert await receive_file(dict(FORM), receive, tmp_path / "f", 100) is None
