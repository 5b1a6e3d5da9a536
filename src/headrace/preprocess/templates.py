"""The chat templates of one model: which one a request gets, and what happens where there is none."""

from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ConfigError
from headrace.preprocess.chat_template import ChatTemplate, choose_template
from headrace.preprocess.tokenizer import Tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplates:
    """Compiled once. A model whose own template is broken still completes raw prompts."""

    def __init__(self, tokenizer: Tokenizer, override: str | None, clock: Clock) -> None:
        """`override` is the source of the operator's own. Raises ConfigError if that is broken."""
        facts = tokenizer.facts
        self._clock = clock
        self._special = {name: getattr(facts, name) for name in _NAMES}
        self.source = override or ""
        self._plain: ChatTemplate | str
        self._with_tools: ChatTemplate | str
        if override is not None:
            self._plain = self._with_tools = self._compile(override)
            return
        has_chatml = tokenizer.id_of("<|im_start|>") is not None
        sources = [
            choose_template(facts.chat_templates, has_chatml=has_chatml, with_tools=with_tools)
            for with_tools in (False, True)
        ]
        self.source = sources[0] or ""
        self._plain = self._try_compile(sources[0])
        self._with_tools = (
            self._plain if sources[0] == sources[1] else self._try_compile(sources[1])
        )

    @property
    def tool_source(self) -> str:
        """Of the template that tools are shown with; empty where there is none."""
        found = self._with_tools
        return found.source if isinstance(found, ChatTemplate) else ""

    def find(self, *, with_tools: bool) -> ChatTemplate:
        """Raises BadRequestError where the model cannot chat."""
        found = self._with_tools if with_tools else self._plain
        if isinstance(found, ChatTemplate):
            return found
        raise BadRequestError(
            f"This model cannot chat: {found}. Use /v1/completions, or start the server with "
            "--chat-template FILE.",
            param="messages",
            code="no_chat_template",
        )

    def of_request(self, source: str) -> ChatTemplate:
        """One that a request brought. Raises BadRequestError where it does not compile."""
        try:
            return self._compile(source)
        except ConfigError as error:
            raise BadRequestError(f"'chat_template': {error}", param="chat_template") from None

    def _compile(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._special, self._clock)

    def _try_compile(self, source: str | None) -> ChatTemplate | str:
        """The template, or why there is none."""
        if source is None:
            return "it has no chat template"
        try:
            return self._compile(source)
        except ConfigError as error:
            return str(error).rstrip(".")
