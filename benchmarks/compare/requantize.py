"""Write a GGUF file anew with its 4-bit tensors in another type: peers are measured on their fastest file.

python benchmarks/compare/requantize.py SmolLM2-135M-Instruct.Q4_1.gguf out.gguf Q4_0
"""

import argparse
from pathlib import Path

import gguf

MATRICES = {
    gguf.GGMLQuantizationType.Q4_0,
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q8_0,
}


def requantize(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """4-bit matrices (for 8 and 16 bit also the 8-bit head) become `kind`; all else is copied."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    converted = []
    for tensor in reader.tensors:
        is_body = tensor.tensor_type in (
            gguf.GGMLQuantizationType.Q4_0,
            gguf.GGMLQuantizationType.Q4_1,
        )
        is_float_target = kind in (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F16)
        if is_body or (is_float_target and tensor.tensor_type in MATRICES):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            converted.append((tensor.name, gguf.quants.quantize(values, kind), kind))
        else:
            converted.append((tensor.name, tensor.data, tensor.tensor_type))
    for name, data, data_type in converted:
        writer.add_tensor(name, data, raw_dtype=data_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("type", choices=["Q4_0", "Q8_0", "BF16", "F16"])
    args = parser.parse_args()
    requantize(args.source, args.target, gguf.GGMLQuantizationType[args.type])


if __name__ == "__main__":
    main()
