"""Preprocess: from a request's body to token ids, away from the event loop."""
