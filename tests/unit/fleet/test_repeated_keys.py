"""What is written twice in a fleet's file is refused: one of the two would be ignored."""

import pytest

from headrace.config.fleet.read import read_fleet
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gateway: {port: 1}\ngateway: {port: 2}\n", "gateway"),
        ("gateway:\n  port: 1\n  port: 2\n", "port"),
        ("replicas:\n  - {url: 'http://a:1', url: 'http://b:1'}\n", "url"),
    ],
)
def test_a_repeated_key_is_refused(text, name, tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"'{name}' is there twice"):
        read_fleet(file)


def test_merged_tables_may_overlap(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "replicas:\n  - &one {url: 'http://a:1', version: a}\n  - {<<: *one, url: 'http://b:1'}\n"
    )
    assert [replica.version for replica in read_fleet(file).replicas] == ["a", "a"]
