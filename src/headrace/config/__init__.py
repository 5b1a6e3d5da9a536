"""What the operator decides: nested frozen structs, a docstring under every field."""
