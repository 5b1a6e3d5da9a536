"""Write the descriptors of the gRPC service from its .proto file.

`python tools/protos.py` writes them; with `--check` it only says whether they are out of date. Needs grpcio-tools.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).parents[1] / "src"
PROTO = SOURCE / "headrace" / "server" / "rpc" / "headrace.proto"


def main() -> int:
    """0, or 1 if --check found them out of date."""
    descriptors = PROTO.with_suffix(".binpb")
    made = compiled()
    if "--check" in sys.argv[1:]:
        is_current = descriptors.is_file() and descriptors.read_bytes() == made
        if not is_current:
            sys.stderr.write(f"{descriptors.name} is out of date. Run `make docs`.\n")
        return 0 if is_current else 1
    descriptors.write_bytes(made)
    return 0


def compiled() -> bytes:
    """A serialized google.protobuf.FileDescriptorSet of the one file, without its comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        arguments = ["protoc", f"-I{SOURCE}", f"-I{Path(protoc.__file__).parent / '_proto'}"]
        code = protoc.main([*arguments, f"--descriptor_set_out={out}", str(PROTO)])
        if code:
            raise SystemExit(code)
        return out.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
