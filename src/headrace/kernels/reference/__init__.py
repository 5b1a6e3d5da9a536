"""Every op in plain numpy: the specification that the other back ends are tested against."""
