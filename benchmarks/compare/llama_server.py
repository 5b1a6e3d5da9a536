"""llama.cpp's own HTTP server from the `xllamacpp` wheel, until it is killed.

python benchmarks/compare/llama_server.py MODEL.gguf --port 8081 --parallel 16 --context 8192
"""

import argparse
import time

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192, help="tokens over all slots")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_ctx = args.context
    params.n_parallel = args.parallel
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.use_jinja = True
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.model_alias = {"M"}
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
