"""Traces: spans made of times that are known anyway, when a request has ended."""
