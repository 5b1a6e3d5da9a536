"""Questions that mean the same, found by vectors, and kept apart by guards: similarity is not sameness."""
