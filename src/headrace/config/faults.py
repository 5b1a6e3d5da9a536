"""What msgspec says of a value that does not fit its type, in plain words: of requests, and of what operators write."""

import re
from typing import Final

_NAMES: Final = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
    "`null`": "null",
}
_SEEN: Final = _NAMES | {"`bool`": "a boolean"}
_TYPES: Final = re.compile(r"^Expected (?P<wanted>`[^,]*`), got (?P<got>`\w+`)$")
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
#: msgspec ends its sentences with the place, such as "- at `$.messages[0].role`".
_PLACE: Final = re.compile(
    r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?$", re.DOTALL
)


def place_of(text: str) -> tuple[str, str | None]:
    """A sentence without its place, and the place: `$` and the way from it. None: it names none."""
    match = _PLACE.match(text)
    return (match["what"], match["path"]) if match else (text, None)


def missing_field(what: str) -> str | None:
    """The name of the field that is missing; None: the fault is another."""
    match = _MISSING.match(what)
    return match["field"] if match else None


def fault_of(what: str) -> str:
    """The sentence without its place, to follow a colon."""
    types = _TYPES.match(what)
    if types is None:
        for name, words in _NAMES.items():
            what = what.replace(name, words)
        return what[:1].lower() + what[1:].replace("`", "").replace("array", "list")
    wanted = [
        _NAMES.get(f"`{name.strip()}`", f"one of {name.strip()}")
        for name in types["wanted"].strip("`").split("|")
        if name.strip() != "null"
    ]
    return f"expected {' or '.join(wanted)}, got {_SEEN.get(types['got'], types['got'].strip('`'))}"
