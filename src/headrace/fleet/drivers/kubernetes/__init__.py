"""Replicas as pods of Deployments, scaled through the API server."""
