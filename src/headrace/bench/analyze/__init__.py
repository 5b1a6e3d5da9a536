"""What bounds the latency of a server, how far it is from its hardware, and what would help most."""
