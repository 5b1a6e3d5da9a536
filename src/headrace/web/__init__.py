"""What the replica's and the gateway's HTTP servers share: ASGI words, bounds, keys, TLS, errors, documents."""
