"""Completion: from token events to text, stops, log-probabilities and usage."""
