"""Reasoning before an answer: one file a format."""
