"""The messages of `headrace.proto`, from the descriptors that lie beside it (`tools/protos.py` makes them)."""

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

DESCRIPTORS: Final = "headrace.binpb"
SERVICE: Final = "headrace.v1.Headrace"


class Schema:
    """The service and the classes of its messages."""

    def __init__(self) -> None:
        pool = descriptor_pool.Default()
        pool.FindFileByName(struct_pb2.DESCRIPTOR.name)  # ours refer to it
        content = (files(__package__) / DESCRIPTORS).read_bytes()
        for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
            pool.AddSerializedFile(file.SerializeToString())
        self._service = pool.FindServiceByName(SERVICE)

    def classes_of(self, method: str) -> tuple[Any, Any]:
        """Of a method's request and of its reply."""
        found = self._service.methods_by_name[method]
        return (
            message_factory.GetMessageClass(found.input_type),
            message_factory.GetMessageClass(found.output_type),
        )
