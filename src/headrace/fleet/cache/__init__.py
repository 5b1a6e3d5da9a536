"""Answers that need not be made again: kept exactly, shared while they are made, or found by meaning."""
