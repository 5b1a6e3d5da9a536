"""Shapes on the wire, as msgspec structs."""
