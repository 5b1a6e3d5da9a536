"""Arrival: the HTTP process, from socket to request and from event to chunk."""
