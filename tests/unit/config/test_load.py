from pathlib import Path

import pytest
from msgspec import Struct

from headrace.config.docs import field_docs, text
from headrace.config.engine import Batching, EngineConfig
from headrace.config.fields import describe
from headrace.config.load import build, load
from headrace.config.root import ServeConfig
from headrace.config.server import LongPrompt
from headrace.core.errors import ConfigError

FIELDS = {field.path: field for field in describe(ServeConfig)}


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "headrace.toml"
    file.write_text(text)
    return file


def test_nothing_given_is_the_defaults() -> None:
    loaded = load(ServeConfig, environment={})
    assert loaded.config == ServeConfig()
    assert set(loaded.origins) == set(FIELDS)
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_environment_over_file_and_origins_say_so(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[server]\nport = 1\nhost = "::"\nlong_prompt = "truncate"\n'
        "[engine.scheduler]\nmax_num_seqs = 2\n",
    )
    loaded = load(
        ServeConfig,
        file=file,
        environment={"HEADRACE_MAX_NUM_SEQS": "3", "HEADRACE_PORT": "4"},
        flags={"server.port": "5"},
    )
    assert loaded.config.server.port == 5
    assert loaded.config.engine.scheduler.max_num_seqs == 3
    assert loaded.config.server.long_prompt is LongPrompt.TRUNCATE
    assert loaded.origins["server.port"] == "flag --port"
    assert loaded.origins["engine.scheduler.max_num_seqs"] == "environment HEADRACE_MAX_NUM_SEQS"
    assert loaded.origins["server.host"] == f"file {file}"
    assert loaded.origins["server.max_n"] == "default"


def test_the_file_may_be_named_in_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 7\n")
    assert load(ServeConfig, environment={"HEADRACE_CONFIG": str(file)}).config.server.port == 7


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("engine.scheduler.chunked_prefill", "off", False),
        ("engine.scheduler.itl_target", "50ms", 0.05),
        ("engine.scheduler.batching", "static", Batching.STATIC),
        ("engine.memory.block_size", "32", 32),
        ("engine.memory.kv_memory", "512MiB", "512MiB"),
        ("server.max_body_bytes", "1MiB", 2**20),
        ("engine.model.served_model_name", "a, b c", ("a", "b", "c")),
        ("engine.model.quantize", "int8", "int8"),
        ("engine.model.quantize", "none", None),
        ("server.kv_events", "tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
    ],
)
def test_text_is_read_by_the_type_of_its_field(path: str, text: str, value: object) -> None:
    variable = FIELDS[path].variable
    loaded = load(ServeConfig, environment={variable: text})
    target: object = loaded.config
    for part in path.split("."):
        target = getattr(target, part)
    assert target == value


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("engine.scheduler.max_num_seqs", "0", "a whole number from 1 to 4096, not '0'"),
        ("engine.scheduler.max_num_seqs", "many", "a whole number from 1 to 4096, not 'many'"),
        ("engine.scheduler.batching", "magic", "one of continuous, dynamic, static"),
        ("engine.memory.block_size", "48", "one of 16, 32, 64, 128, 256"),
        ("engine.memory.memory_utilization", "nan", "a number from 0 to 1"),
        ("server.max_queue_time", "0", "a number of seconds above 0"),
        ("server.max_queue_time", "inf", "a number of seconds above 0"),
        ("server.max_queue_time", "foo", "above 0 (such as 90, 10m or 24h), not 'foo'"),
        ("engine.memory.kv_memory", "lots", "auto, or a size such as 512MiB or 4GiB"),
        ("engine.memory.prefix_cache", "maybe", "true or false"),
        ("server.kv_events", "localhost:1", "an endpoint such as tcp://127.0.0.1:5557"),
        ("server.host", "x" * 100, None),
    ],
)
def test_a_bad_value_names_field_origin_and_what_is_wanted(
    path: str, text: str, expected: str | None
) -> None:
    field = FIELDS[path]
    if expected is None:
        assert load(ServeConfig, environment={field.variable: text}).config.server.host == text
        return
    with pytest.raises(ConfigError) as error:
        load(ServeConfig, environment={field.variable: text})
    assert str(error.value).startswith(f"{field.attribute} from environment {field.variable} must")
    assert expected in str(error.value)


def test_long_bad_values_are_cut() -> None:
    with pytest.raises(ConfigError) as error:
        load(ServeConfig, environment={"HEADRACE_PORT": "9" * 5000})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", r"'server.prot'.*did you mean 'server.port'\?$"),
        ("[serverr]\nport = 1", r"'serverr'.*did you mean 'server'\?$"),
        ("[server]\nmax_num_seqs = 1", "belongs at 'engine.scheduler.max_num_seqs'"),
        ("server = 3", r"must be a table, written \[server\]"),
        ("[server]\nport = '8000'", "a whole number from 0 to 65535, not '8000'"),
        ("[server]\nport = true", "a whole number from 0 to 65535"),
        ("[server.port]\nx = 1", "a whole number from 0 to 65535"),
        ("[server]\nmax_queue_time = nan", "a number of seconds above 0"),
        ("port", "is not TOML"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(ServeConfig, file=write(tmp_path, text), environment={})


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(ServeConfig, file=tmp_path / "none.toml", environment={})
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(ServeConfig, file=tmp_path / "raw.toml", environment={})


def test_units_work_in_files(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nmax_body_bytes = '2MiB'\ndrain_timeout = 5\n")
    server = load(ServeConfig, file=file, environment={}).config.server
    assert (server.max_body_bytes, server.drain_timeout) == (2**21, 5.0)
    assert isinstance(server.drain_timeout, float)


def test_misspelt_variables_are_errors_and_foreign_ones_are_not() -> None:
    with pytest.raises(ConfigError, match="did you mean HEADRACE_MAX_NUM_SEQS"):
        load(ServeConfig, environment={"HEADRACE_MAX_NUM_SEQ": "1"})
    others = {
        "HEADRACE_CACHE": "/x",
        "HEADRACE_SOMETHING_ELSE": "1",
        "HEADRACE_SERVICE_PORT_X": "1",
    }
    (warning,) = load(ServeConfig, environment=others).warnings
    assert warning.startswith("HEADRACE_SOMETHING_ELSE is no setting")


def test_kubernetes_service_variables_are_not_ours() -> None:
    environment = {
        "HEADRACE_PORT": "tcp://10.0.0.7:8000",
        "HEADRACE_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "HEADRACE_PORT_8000_TCP_PORT": "8000",
        "HEADRACE_SERVICE_HOST": "10.0.0.7",
        "HEADRACE_SERVICE_PORT": "8000",
    }
    assert load(ServeConfig, environment=environment).config == ServeConfig()


def test_secrets_are_masked_when_shown_and_usable_when_compared() -> None:
    server = load(ServeConfig, environment={"HEADRACE_TRUSTED_PEER_TOKEN": "hunter2"}).config.server
    assert server.trusted_peer_token == "hunter2"
    assert "hunter2" not in repr(server)


def test_build_takes_field_names_and_checks_them() -> None:
    config = build(EngineConfig, model="x.gguf", max_num_seqs=3, served_model_name=["a"])
    assert config.scheduler.max_num_seqs == 3
    assert config.model.served_model_name == ("a",)
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        build(EngineConfig, max_num_seq=3)
    with pytest.raises(ConfigError, match="max_num_seqs from argument max_num_seqs must be"):
        build(EngineConfig, max_num_seqs=0)


def test_every_name_is_unambiguous() -> None:
    names = [field.name for field in FIELDS.values()]
    assert len(names) == len(set(names))
    assert all(field.name == field.attribute for field in FIELDS.values())


def test_a_name_used_twice_gets_its_section() -> None:
    class Left(Struct, frozen=True):
        port: int = 1

    class Right(Struct, frozen=True):
        port: int = 2
        host: str = "x"

    class Root(Struct, frozen=True):
        left: Left = Left()
        right: Right = Right()

    assert [f.flag for f in describe(Root)] == ["--left-port", "--right-port", "--host"]
    loaded = load(Root, environment={"HEADRACE_RIGHT_PORT": "9"})
    assert (loaded.config.left.port, loaded.config.right.port) == (1, 9)


def test_every_field_and_choice_is_documented() -> None:
    assert [path for path, field in FIELDS.items() if not text(field)] == []
    assert field_docs(Batching)["CONTINUOUS"] == "A sequence joins and leaves at any step."


def test_two_ways_to_size_memory_exclude_each_other(tmp_path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[engine.memory]\nkv_memory = "1GiB"\n')
    flags = {"engine.memory.memory_utilization": "0.5"}
    with pytest.raises(ConfigError, match=r"kv_memory \(1GiB\) and memory_utilization \(0.5\)"):
        load(ServeConfig, file=file, environment={}, flags=flags)
    assert load(ServeConfig, environment={}, flags=flags).config.engine.memory.kv_memory == "auto"
