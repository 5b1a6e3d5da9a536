"""Models: one decoder, families as data, and where weights come from."""
