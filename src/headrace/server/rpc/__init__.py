"""gRPC beside HTTP, as an extra: every call is a request to an ordinary route. Loaded with `--grpc-port` only."""
