"""Replicas on an existing Ray cluster: Ray places and watches processes, and requests go to them by HTTP."""
