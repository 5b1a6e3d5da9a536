import pytest

from headrace.bench.options import BenchOptions
from headrace.cli.flags import Parser, add_config, config_values, shown_default
from headrace.cli.serve import load_config, make_parser
from headrace.config.engine import Batching
from headrace.config.fields import Kind, describe
from headrace.config.load import load
from headrace.config.root import ServeConfig


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.config.env.with_prefix", lambda _: {})


def parsed(*argv: str) -> ServeConfig:
    return load_config(make_parser(argv).parse(argv)).config


def test_no_flags_are_the_defaults() -> None:
    assert parsed() == ServeConfig()


def test_flags_of_every_kind() -> None:
    config = parsed(
        "x.gguf", "--port", "0", "--no-chunked-prefill", "--batching=static", "--itl-target", "50ms",
        "--served-model-name", "a", "b", "--kv-memory", "1GiB", "--block-size", "32", "--cache-packed",
    )  # fmt: skip
    assert config.engine.model.model == "x.gguf"
    assert config.engine.model.served_model_name == ("a", "b")
    assert config.server.port == 0
    assert config.engine.scheduler.chunked_prefill is False
    assert config.engine.scheduler.batching is Batching.STATIC
    assert config.engine.scheduler.itl_target == 0.05
    assert config.engine.memory.block_size == 32


def test_the_model_may_be_said_twice_if_it_is_the_same() -> None:
    assert parsed("m", "--model", "m").engine.model.model == "m"


def test_lists_of_numbers_take_commas_and_spaces() -> None:
    argv = ["--concurrency", "1,4", "16", "--rate", "0.5"]
    parser = Parser("bench", "")
    add_config(parser, BenchOptions, argv)
    flags = config_values(BenchOptions, parser.parse(argv))
    options = load(BenchOptions, environment={}, flags=flags).config
    assert (options.concurrency, options.rate) == ((1, 4, 16), (0.5,))


def test_every_field_has_a_flag_and_help_with_its_docstring_and_variable() -> None:
    text = " ".join(make_parser(["--help"]).format_help().split())
    for field in describe(ServeConfig):
        if field.kind is Kind.TREE:
            continue  # in a file only
        assert field.flag in text
        assert field.variable in text
    assert "Token budget of one step (default 512, HEADRACE_MAX_NUM_BATCHED_TOKENS)" in text
    assert "--chunked-prefill, --no-chunked-prefill" in text
    assert "{continuous,dynamic,static}" in text


def test_docstrings_are_not_read_unless_help_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("docstrings were read")

    monkeypatch.setattr("headrace.config.docs.field_docs", refuse)
    assert parsed("--port", "1").server.port == 1
    with pytest.raises(AssertionError):
        make_parser(["--help"])


def test_defaults_in_words() -> None:
    shown = {field.attribute: shown_default(field) for field in describe(ServeConfig)}
    assert shown["port"] == "default 8000"
    assert shown["prefix_cache"] == "default on"
    assert shown["batching"] == "default continuous"
    assert shown["quantize"] == shown["served_model_name"] == ""
