"""A client of the gRPC service, without generated code."""

import json
from typing import Any

import grpc
from tests.support.patience import PATIENCE

from headrace.server.rpc.schema import SERVICE, Schema

ERROR = "headrace-error-bin"


class GrpcClient:
    """A channel and the methods on it; `metadata` goes with every call."""

    def __init__(self, channel: grpc.Channel, **metadata: str) -> None:
        self.channel = channel
        self._schema = Schema()
        self._metadata = metadata

    def method(self, name: str) -> Any:
        """A callable of the channel's, that takes a message and call options."""
        request, reply = self._schema.classes_of(name)
        kind = self.channel.unary_stream if name.endswith("Stream") else self.channel.unary_unary
        return kind(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )

    def message(self, name: str, **fields: Any) -> Any:
        """The request of a method."""
        return self._schema.classes_of(name)[0](**fields)

    def call(
        self, method: str, *, timeout: float = PATIENCE, headers: Any = None, **fields: Any
    ) -> Any:
        """The reply, or an iterator over a stream's."""
        metadata = {key.replace("_", "-"): v for key, v in self._metadata.items()} | (headers or {})
        made = self.message(method, **fields)
        return self.method(method)(made, timeout=timeout, metadata=tuple(metadata.items()))

    def raw(self, method: str, data: bytes, *, service: str = SERVICE) -> bytes:
        """Bytes in, bytes out."""
        call = self.channel.unary_unary(f"/{service}/{method}")
        metadata = tuple((key.replace("_", "-"), v) for key, v in self._metadata.items())
        reply: bytes = call(data, timeout=PATIENCE, metadata=metadata)
        return reply


def address_of(lines: list[str]) -> str:
    """Where a server says that it serves gRPC."""
    return next(line.split(" served at ")[1] for line in lines if "gRPC is served at" in line)


def error_object(error: grpc.RpcError) -> dict[str, Any]:
    """The JSON error object of a call that failed."""
    found: dict[str, Any] = json.loads(dict(error.trailing_metadata())[ERROR])
    return found
