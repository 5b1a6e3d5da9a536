"""Where in a YAML file a setting stands. Asked only when there is a fault to tell."""

import re
from typing import Any, Final

_STEP: Final = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def line_of(content: bytes, path: str) -> int | None:
    """The line, from 1, of the last step of `path` that is there, such as `pools[0].model`. None: the file is no YAML."""
    import yaml

    try:
        node: Any = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None
    if node is None:
        return None
    line: int = node.start_mark.line
    for match in _STEP.finditer(path):
        found = _inside(node, match[1], match[2])
        if found is None:
            break
        line, node = found
    return line + 1


def _inside(node: Any, index: str | None, key: str | None) -> tuple[int, Any] | None:
    """The line of an entry, and what it holds."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and index is not None:
        entries = node.value[int(index) : int(index) + 1]
        return next(((entry.start_mark.line, entry) for entry in entries), None)
    if isinstance(node, yaml.MappingNode) and key is not None:
        pairs = [(k.start_mark.line, v) for k, v in node.value if str(k.value) == key]
        return pairs[-1] if pairs else None
    return None
