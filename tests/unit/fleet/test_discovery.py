"""Where replicas come from."""

import logging

import pytest

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.errors import ConfigError
from headrace.fleet.discovery import FileDiscovery, Sources, StaticDiscovery

ONE, TWO = "- {url: 'http://a:1'}\n", "- {url: 'http://a:1'}\n- {url: 'http://b:1'}\n"


def names(specs) -> list[str]:
    return [spec.name for spec in specs]


async def test_a_file_is_read_again_when_it_changes(tmp_path):
    file = tmp_path / "replicas.yaml"
    file.write_text(ONE)
    found = FileDiscovery(file)
    assert names(await found.list()) == ["a:1"]
    assert await found.list() is None
    file.write_text(TWO)
    assert names(await found.list()) == ["a:1", "b:1"]
    replaced = tmp_path / "new"
    replaced.write_text("replicas: []")
    replaced.replace(file)  # as editors and kubelets do
    assert names(await found.list()) == []


@pytest.mark.parametrize("bad", ["- {", "- {url: ftp://x}", "- {url: 'http://a:1', wrong: 1}", "7"])
async def test_a_bad_file_changes_nothing_and_is_complained_of_once(tmp_path, bad, caplog):
    file = tmp_path / "replicas.yaml"
    file.write_text(TWO)
    sources = Sources({"file": FileDiscovery(file)})
    assert names(await sources.list()) == ["a:1", "b:1"]
    file.write_text(bad)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert names(await sources.list()) == ["a:1", "b:1"]
    assert len(caplog.records) == 1
    file.write_text(ONE + "  # mended")
    assert names(await sources.list()) == ["a:1"]


async def test_a_file_that_is_gone_changes_nothing(tmp_path, caplog):
    file = tmp_path / "replicas.yaml"
    file.write_text(ONE)
    sources = Sources({"file": FileDiscovery(file)})
    await sources.list()
    file.unlink()
    with caplog.at_level(logging.ERROR):
        assert names(await sources.list()) == ["a:1"]
        assert names(await sources.list()) == ["a:1"]
    assert len(caplog.records) == 1
    file.write_text(TWO)
    assert names(await sources.list()) == ["a:1", "b:1"]


async def test_a_file_that_was_never_there_does_not_hide_the_others(tmp_path):
    static = StaticDiscovery([ReplicaSpec(url="http://s:1")])
    sources = Sources({"static": static, "file": FileDiscovery(tmp_path / "none.yaml")})
    assert names(await sources.list()) == ["s:1"]


async def test_what_a_source_told_outlives_a_reload(tmp_path):
    file = tmp_path / "replicas.yaml"
    file.write_text(TWO)
    sources = Sources({"file": FileDiscovery(file)})
    await sources.list()
    file.write_text("- {")
    sources.replace({"file": FileDiscovery(file)})
    assert names(await sources.list()) == ["a:1", "b:1"]
    sources.replace({"other": StaticDiscovery([])})
    assert await sources.list() == []


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"url": "ftp://a"}, "http"),
        ({"url": "http://"}, "http"),
        ({"url": "http://a:99999"}, "URL"),
        ({"url": "http://user:secret@a"}, "api_key"),
        ({"url": "http://a/?key=secret"}, "path only"),
        ({"url": "http://a/b c"}, "ASCII"),
        ({"url": "http://a", "id": "é"}, "id"),
        ({"url": "http://a", "api_key": "two\r\nlines"}, "api_key"),
        ({"url": "http://a", "peer_token": "ключ"}, "peer_token"),
    ],
)
def test_what_cannot_be_called_is_refused(fields, word):
    with pytest.raises(ConfigError) as caught:
        ReplicaSpec(**fields)
    assert word in str(caught.value)
    assert "secret" not in str(caught.value)
