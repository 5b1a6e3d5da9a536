"""Everything that prepares requests for one model, from its files."""

from dataclasses import dataclass
from pathlib import Path

from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.model_info import ModelInfo
from headrace.preprocess.generation_config import SamplingDefaults, read_sampling_defaults
from headrace.preprocess.prepare import Preparer
from headrace.preprocess.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class ModelText:
    """What a model's files say about text; known before its engine is ready, and after it is gone."""

    tokenizer: Tokenizer
    defaults: SamplingDefaults = SamplingDefaults()  # noqa: RUF009 - frozen
    chat_template: str | None = None
    """Source of a template that replaces the model's own."""

    def preparer(self, info: ModelInfo, config: ServerConfig, clock: Clock) -> Preparer:
        """For an engine with these facts. Raises ConfigError for a template that does not compile."""
        return Preparer(
            self.tokenizer,
            info,
            config,
            clock,
            defaults=self.defaults,
            chat_template=self.chat_template,
        )


def load_text(path: Path | str, *, source: str = "", chat_template: str | None = None) -> ModelText:
    """Of a GGUF file or a model directory; `chat_template` is a file that replaces the model's own.

    `source` is what the operator asked for: a short name knows how its model is best sampled.

    Raises ConfigError (ModelLoadError among them) for files that cannot be used.
    """
    return ModelText(
        load_tokenizer(path),
        read_sampling_defaults(path, source),
        None if chat_template is None else read_template(chat_template),
    )


def read_template(path: str) -> str:
    """The source of a template file. Raises ConfigError."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The chat template '{path}' cannot be read: {error}.") from error
