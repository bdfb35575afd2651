"""A copy of a GGUF file with every tensor dequantised to float32, for comparisons without quantised activations.

python -m benchmarks.gguf_f32 MODEL.gguf MODEL-f32.gguf
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

SKIPPED = ("general.architecture", "general.file_type", "general.quantization_version")


def dequantise(source: Path, dest: Path) -> None:
    """Write `dest` with the keys of `source` and its tensors in float32."""
    gguf: Any = importlib.import_module("gguf")
    quants: Any = importlib.import_module("gguf.quants")
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(dest), reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in SKIPPED:
            continue
        value, kinds = field.contents(), field.types
        if value == []:
            continue  # the writer has no empty lists
        writer.add_key_value(key, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    options = parser.parse_args()
    dequantise(options.source, options.dest)


if __name__ == "__main__":
    main()
