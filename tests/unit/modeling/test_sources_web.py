"""https:// and s3:// sources: resuming, checking, refusing; against servers on this machine."""

import hashlib
import sys

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.support.file_server import FileServer, serve_files

from headrace.core.errors import ConfigError, DownloadError
from headrace.modeling.weights.sources import transfer
from headrace.modeling.weights.sources.https import check_url
from headrace.modeling.weights.sources.resolve import resolve
from headrace.modeling.weights.sources.store import ModelStore

CONTENT = b"GGUF" + bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serve_files(FileServer({"/m/model.gguf": CONTENT})) as running:
        yield running


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setitem(transfer.transfer.__kwdefaults__, "sleep", lambda _: None)


def fetch(server, store, fragment="", name="/m/model.gguf"):
    return resolve(server.url + name + fragment, progress=False, store=store)


def visible(store):
    """What a user could take for a model."""
    return [p for p in store.directory.glob("*/*") if not p.parent.name.startswith(".")]


def test_a_file_is_fetched_once(server, store):
    path = fetch(server, store, f"#sha256={DIGEST}")
    assert path.name == "model.gguf"
    assert path.read_bytes() == CONTENT
    assert fetch(server, store, f"#sha256={DIGEST}") == path
    assert len(server.requests) == 1
    (model,) = store.list()
    assert (model.path, model.sha256, model.num_bytes) == (path, DIGEST, len(CONTENT))
    assert store.verify(model.name)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert not store.verify(model.name)


def test_a_broken_connection_is_resumed(server, store):
    server.break_after = [100_000, 0, 300_000]
    assert fetch(server, store).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [
        None,
        "bytes=100000-",
        "bytes=100000-",
        "bytes=400000-",
    ]


def test_a_later_try_continues_where_an_earlier_one_gave_up(server, store):
    server.break_after = [200_000] + [0] * (transfer.ATTEMPTS - 1)
    with pytest.raises(DownloadError, match=r"ended at 200000 of .* is kept"):
        fetch(server, store)
    assert visible(store) == []
    assert store.list() == []
    server.requests.clear()
    assert fetch(server, store).read_bytes() == CONTENT
    assert server.requests == [("/m/model.gguf", "bytes=200000-")]
    assert list((store.directory / ".partial").iterdir()) == []


def test_a_file_that_changed_meanwhile_is_fetched_anew(server, store):
    server.break_after = [200_000] + [0] * (transfer.ATTEMPTS - 1)
    with pytest.raises(DownloadError):
        fetch(server, store)
    other = b"GGUF" + CONTENT[::-1]
    server.files["/m/model.gguf"] = other
    server.etag = '"two"'
    assert fetch(server, store).read_bytes() == other


def test_without_versions_nothing_is_resumed(server, store):
    server.etag = None
    server.break_after = [100_000]
    assert fetch(server, store).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, None]


def test_a_server_without_ranges(server, store):
    server.supports_ranges = False
    server.break_after = [100_000]
    assert fetch(server, store).read_bytes() == CONTENT


def test_a_server_that_announces_no_length(server, store):
    server.announces_length = False
    assert fetch(server, store).read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server, store):
    server.statuses = [503, 429, 500]
    assert fetch(server, store).read_bytes() == CONTENT
    server.statuses = [503] * 50
    with pytest.raises(DownloadError, match="answered 503"):
        resolve(
            f"{server.url}/m/model.gguf?other",
            progress=False,
            store=ModelStore(store.directory / "x"),
        )


def test_what_is_not_there(server, store):
    with pytest.raises(DownloadError, match="answered 404"):
        fetch(server, store, name="/m/none.gguf")
    assert len(server.requests) == 1
    assert visible(store) == []


def test_the_wrong_digest_leaves_nothing(server, store):
    with pytest.raises(DownloadError, match=f"has the sha256 {DIGEST}, but 0000"):
        fetch(server, store, "#sha256=" + "0" * 64)
    assert visible(store) == []
    assert list((store.directory / ".partial").iterdir()) == []


def test_a_page_is_not_a_model(server, store):
    server.files["/m/model.gguf"] = b"<html>Please log in</html>"
    with pytest.raises(DownloadError, match="is not a GGUF file"):
        fetch(server, store)
    assert visible(store) == []


def test_split_models_come_whole(server, store):
    names = [f"/s/m-0000{n}-of-00002.gguf" for n in (1, 2)]
    server.files |= {name: b"GGUF" + name.encode() for name in names}
    path = fetch(server, store, name=names[1])
    assert path.name == "m-00001-of-00002.gguf"
    assert sorted(p.name for p in path.parent.glob("*.gguf")) == [n[3:] for n in names]


def test_redirects_are_followed_but_not_far(server, store):
    server.redirects = {"/a/model.gguf": "/m/model.gguf", "/loop.gguf": "/loop.gguf"}
    assert fetch(server, store, name="/a/model.gguf").read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="answered 302"):
        fetch(server, store, name="/loop.gguf")
    server.redirects = {"/b.gguf": "http://192.0.2.1/m.gguf", "/c.gguf": "file:///etc/passwd"}
    for name in server.redirects:
        with pytest.raises(DownloadError, match=r"is not https|is not allowed"):
            fetch(server, store, name=name)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.org/m.gguf", "is not https"),
        ("https:///m.gguf", "names no host"),
        ("https://user:secret@example.org/m.gguf", "password"),
        ("https://example.org:bad/m.gguf", "is not a URL"),
    ],
)
def test_urls_that_are_not_fetched(url, message):
    with pytest.raises(DownloadError, match=message):
        check_url(url)


def test_fragments_and_names(server, store):
    with pytest.raises(DownloadError, match="is not understood"):
        fetch(server, store, "#md5=1")
    with pytest.raises(ConfigError, match="not a sha256"):
        fetch(server, store, "#sha256=12")
    with pytest.raises(DownloadError, match="usable file name"):
        fetch(server, store, name="/")


def test_signatures_in_the_query_are_not_kept(server, store):
    path = fetch(server, store, name="/m/model.gguf?key=hush")
    assert "hush" not in (path.parent / ".headrace.json").read_text()
    assert "hush" not in path.parent.name
    assert fetch(server, store, name="/m/model.gguf?key=new") == path
    with pytest.raises(DownloadError) as failed:
        fetch(server, store, name="/m/none.gguf?key=hush")
    assert "hush" not in str(failed.value)


# ---- S3 ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moto_url():
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto_url, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="weights")
    return client


def test_an_object_of_s3(bucket, store):
    bucket.put_object(Bucket="weights", Key="llm/m.gguf", Body=CONTENT)
    path = resolve("s3://weights/llm/m.gguf", progress=False, store=store)
    assert path.read_bytes() == CONTENT
    bucket.delete_object(Bucket="weights", Key="llm/m.gguf")
    assert resolve("s3://weights/llm/m.gguf", progress=False, store=store) == path


def test_a_model_directory_of_s3(bucket, store):
    wanted = {
        "config.json": b"{}",
        "model.safetensors": b"x" * 9,
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"t",
        "additional_chat_templates/rag.jinja": b"r",
    }
    ignored = {"pytorch_model.bin": b"", "onnx/config.json": b"", "original/model.safetensors": b""}
    for name, body in (wanted | ignored).items():
        bucket.put_object(Bucket="weights", Key=f"dir/model/{name}", Body=body)
    bucket.put_object(Bucket="weights", Key="dir/model-2/config.json", Body=b"other")
    path = resolve("s3://weights/dir/model", progress=False, store=store)
    found = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    del found[".headrace.json"]
    assert found == wanted


def test_what_s3_does_not_have(bucket, store):
    with pytest.raises(DownloadError, match="answered 404"):
        resolve("s3://weights/none.gguf", progress=False, store=store)
    with pytest.raises(DownloadError, match=r"no config\.json"):
        resolve("s3://weights/none", progress=False, store=store)
    with pytest.raises(DownloadError, match="cannot be listed"):
        resolve("s3://no-such-bucket/model", progress=False, store=store)
    for bad in ("s3:weights", "s3://weights", "s3:///key"):
        with pytest.raises(DownloadError, match="form s3://bucket/key"):
            resolve(bad, progress=False, store=store)
    assert visible(store) == []


def test_a_broken_s3_transfer_is_resumed(bucket, store, monkeypatch):
    from botocore.response import StreamingBody

    bucket.put_object(Bucket="weights", Key="big.gguf", Body=CONTENT)
    real = StreamingBody.iter_chunks
    starts = []

    def breaking(self, size):
        starts.append(self)
        if len(starts) > 1:
            yield from real(self, size)
        else:
            yield self.read(1000)
            raise ConnectionResetError("gone")

    monkeypatch.setattr(StreamingBody, "iter_chunks", breaking)
    path = resolve("s3://weights/big.gguf", progress=False, store=store)
    assert path.read_bytes() == CONTENT
    assert len(starts) == 2


def test_s3_without_boto3_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(DownloadError, match=r"pip install 'headrace\[s3\]'"):
        resolve("s3://weights/m.gguf", progress=False, store=store)
