"""Names of calls: what a client repeats when it says what a call gave."""

import secrets
import string
from typing import Final

from headrace.config.server import ToolFormat
from headrace.preprocess.reading import Reading

#: Mistral's templates refuse any other length, and anything but these.
_MISTRAL_LENGTH: Final = 9
_MISTRAL_ALPHABET: Final = string.ascii_letters + string.digits
_MISTRAL: Final = (ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS)


class CallIds:
    """Draws unique ids in the form that the model's template takes."""

    def __init__(self, reading: Reading) -> None:
        self._is_mistral = reading.tools is not None and reading.tools.format in _MISTRAL

    def draw(self) -> str:
        """An id that no other call has: 96 bits, or 53 where the template allows no more."""
        if self._is_mistral:
            return "".join(secrets.choice(_MISTRAL_ALPHABET) for _ in range(_MISTRAL_LENGTH))
        return f"call_{secrets.token_hex(12)}"
