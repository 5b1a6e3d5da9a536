import pytest

from headrace import __version__
from headrace.cli import main as cli
from headrace.core.errors import ConfigError, InternalError


def status_of(*argv: str) -> int:
    return cli.main(list(argv))


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert status_of(*words) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        status_of(name, "--help")
    assert end.value.code == 0
    assert f"usage: headrace {name}" in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("serv") == 2
    assert "serve, chat, models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("Bad."), 2), (InternalError("Broke."), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_status_says_the_kind_of_failure(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert status_of("serve") == status
    assert capsys.readouterr().err == (f"headrace: error: {error}\n" if str(error) else "")


def test_debug_lets_the_error_through() -> None:
    with pytest.raises(ConfigError):
        status_of("serve", "--debug", "--port", "x")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--max-num-seq", "3"], "did you mean --max-num-seqs?"),
        (["simulate", "--kil", "1"], "did you mean --kill-every?"),
        (["serve", "--max-model-len=3"], "here it is --max-context"),
        (["serve", "--port"], "expected one argument"),
        (["serve", "--port", "-3"], "--port"),
        (["serve", "--port", "high"], "port from flag --port must be a whole number from 0 to 65535"),
        (["serve", "a", "b", "b"], "would both be served as 'b'"),
        (["serve", "a", "--no-model"], "exclude each other"),
        (["serve", "a", "--model", "b"], "Two models are named"),
        (["serve", "--no-model"], "waits for POST /control/load, which needs a token"),
        (["serve", "--start", "parked"], "set HEADRACE_CONTROL_TOKEN"),
        (["fleet", "drain", "http://a:1"], "is no replica's id"),
        (["serve", "--batching", "magic"], "one of continuous, dynamic, static"),
        (["serve", "--config", "/nowhere.toml"], "cannot be read"),
        (["models", "pull"], "Say which models to pull"),
        (["models", "burn"], "invalid choice"),
        (["bench", "--slo", "fast"], "--slo"),
        (["bench", "--concurrency", "0"], "concurrency from flag --concurrency must be"),
        (["chat", "--temperature", "9"], "temperature from flag"),
    ],
)  # fmt: skip
def test_wrong_command_lines_are_one_sentence(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_server_that_is_not_there_is_told_of_without_an_error_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of("timeline", "http://127.0.0.1:1") == 1
    assert "There is no server at 127.0.0.1:1: Connection refused." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "word"),
    [("list", "short names"), ("pull", "Fetch"), ("remove", "Delete"), ("verify", "damaged")],
)
def test_the_help_of_each_action_on_models_is_its_own(
    capsys: pytest.CaptureFixture[str], action: str, word: str
) -> None:
    with pytest.raises(SystemExit):
        status_of("models", action, "--help")
    assert word in capsys.readouterr().out


def test_keys_in_flags_and_unknown_variables_are_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_UNHEARD_OF", "1")
    assert status_of("serve", "/nowhere.gguf", "--api-keys", "sk-hidden,sk-hidden") == 2
    lines = capsys.readouterr().err.splitlines()
    assert "HEADRACE_UNHEARD_OF is no setting" in lines[0]
    assert "use HEADRACE_API_KEYS instead" in lines[1]
    assert "repeats the key" in lines[2]
    assert "sk-hidden" not in "".join(lines)
