"""Declared steps behind the name of a model: templates, models, retrieval, other servers."""
