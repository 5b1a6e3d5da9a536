"""Split GGUF files by name: one part stands for all."""

from headrace.modeling.weights.gguf import MAX_PARTS, PART_NAME


def part_names(name: str) -> list[str]:
    """All parts when `name` (it may have a folder) is one of a split model, else `name` alone."""
    folder, slash, base = name.rpartition("/")
    match = PART_NAME.match(base)
    if match is None or not 1 <= int(match["count"]) <= MAX_PARTS:
        return [name]
    count = int(match["count"])
    return [
        f"{folder}{slash}{match['stem']}-{number:05d}-of-{count:05d}.gguf"
        for number in range(1, count + 1)
    ]
