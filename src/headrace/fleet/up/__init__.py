"""`headrace up` and `headrace down`: a whole fleet by one command."""
