"""Where adapters may change a decoder: one place per projection, joined linears in their pieces."""

from typing import NamedTuple

from headrace.modeling.spec import ModelSpec


class Place(NamedTuple):
    """Some output columns of a linear parameter, as one projection makes them."""

    name: str
    """Such as `layers.3.q`."""
    first_column: int
    num_outputs: int  # N
    num_inputs: int  # K


def places(spec: ModelSpec, parameter: str) -> tuple[Place, ...]:
    """Those of a layer's linear, by its parameter's name (`layers.3.qkv`); none elsewhere."""
    layer, _, kind = parameter.rpartition(".")
    pieces: list[tuple[str, int]]
    num_inputs = spec.hidden_size
    if not layer:
        return ()
    if kind == "qkv":
        queries, keys = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
        pieces = [("q", queries), ("k", keys), ("v", keys)]
    elif kind == "gate_up":
        pieces = [("gate", spec.intermediate_size), ("up", spec.intermediate_size)]
    elif kind == "output":
        pieces, num_inputs = [("output", spec.hidden_size)], spec.num_heads * spec.head_size
    elif kind == "down":
        pieces, num_inputs = [("down", spec.hidden_size)], spec.intermediate_size
    else:
        return ()
    found, first = [], 0
    for name, rows in pieces:
        found.append(Place(f"{layer}.{name}", first, rows, num_inputs))
        first += rows
    return tuple(found)


def all_places(spec: ModelSpec) -> dict[str, Place]:
    """Every place of the model, by name."""
    return {
        place.name: place
        for layer in range(spec.num_layers)
        for kind in ("qkv", "output", "gate_up", "down")
        for place in places(spec, f"layers.{layer}.{kind}")
    }
