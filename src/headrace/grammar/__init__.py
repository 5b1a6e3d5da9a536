"""Structured output: grammars compiled once and matched token by token."""
