"""Calls of tools in an answer's text: one reader for free text, one for forced calls, one file a format."""
