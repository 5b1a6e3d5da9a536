"""Everything that prepares requests for one model, from its files."""

from pathlib import Path

from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.model_info import ModelInfo
from headrace.preprocess.generation_config import read_sampling_defaults
from headrace.preprocess.prepare import Preparer
from headrace.preprocess.tokenizer import Tokenizer, load_tokenizer


def load_preparer(
    info: ModelInfo,
    config: ServerConfig,
    clock: Clock,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
) -> Preparer:
    """The preparer of a loaded model; `tokenizer` where it was loaded already.

    `chat_template` is a file whose template replaces the model's own. Raises ConfigError (ModelLoadError
    among them) for files that cannot be used.
    """
    return Preparer(
        tokenizer or load_tokenizer(info.path),
        info,
        config,
        clock,
        defaults=read_sampling_defaults(info.path),
        chat_template=None if chat_template is None else read_template(chat_template),
    )


def read_template(path: str) -> str:
    """The source of a template file. Raises ConfigError."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The chat template '{path}' cannot be read: {error}.") from error
