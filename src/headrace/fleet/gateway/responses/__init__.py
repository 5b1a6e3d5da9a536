"""Responses that replicas keep: who keeps which, and what is done with them."""
