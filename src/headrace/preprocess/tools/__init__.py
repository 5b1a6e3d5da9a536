"""Tools of a request: checked, shown to the model in its own format, and, where asked for, forced."""
