"""HTTP/1.1 to replicas: keep-alive pools, one deadline timer per exchange, bytes as they come."""
