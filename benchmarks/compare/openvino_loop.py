"""OpenVINO GenAI's continuous batching, driven in its own process without HTTP, which flatters it.

Runs in an environment of its own (`pip install openvino-genai`). Reads its work as JSON from standard input
(threads, output_tokens, loops: clients and prompts, prefill: token ids per length) and prints one JSON line per
figure. Closed loop: as soon as a request ends, the next one is added.

    python openvino_loop.py MODEL.gguf < work.json
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import openvino as core
import openvino_genai as ov


def percentile(values: list[float], share: float) -> float:
    """The smallest value that has `share` of all below it or equal to it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def options(output_tokens: int) -> ov.GenerationConfig:
    config = ov.GenerationConfig()
    config.max_new_tokens = output_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def run(pipe, config, prompts: list[str], clients: int) -> dict:
    """All prompts through `clients` places."""
    waiting = list(enumerate(prompts))
    running: dict[int, list] = {}
    ttft: list[float] = []
    tokens = 0
    began = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < clients:
            request_id, text = waiting.pop(0)
            added = time.perf_counter()
            running[request_id] = [pipe.add_request(request_id, text, config), added, False]
        pipe.step()
        for request_id in list(running):
            handle, added, has_first = running[request_id]
            while handle.can_read():
                for output in handle.read().values():
                    tokens += len(output.generated_ids)
                if not has_first:
                    ttft.append(time.perf_counter() - added)
                    running[request_id][2] = has_first = True
            if handle.get_status() != ov.GenerationStatus.RUNNING:
                del running[request_id]
    seconds = time.perf_counter() - began
    return {
        "clients": clients,
        "output_tokens_per_second": tokens / seconds,
        "ttft_p50": percentile(ttft, 0.5),
        "ttft_p95": percentile(ttft, 0.95),
    }


def prefill(pipe, prompts: list[list[int]]) -> dict:
    """Time to the first token of one prompt after the other; the first is not counted."""
    seconds = []
    for number, ids in enumerate(prompts):
        began = time.perf_counter()
        handle = pipe.add_request(number, core.Tensor(np.array([ids], np.int64)), options(1))
        while not handle.can_read():
            pipe.step()
        handle.read()
        seconds.append(time.perf_counter() - began)
        while pipe.has_non_finished_requests():
            pipe.step()
    tokens = len(prompts[0])
    rate = tokens / statistics.median(seconds[1:])
    return {"prompt_tokens": tokens, "tokens_per_second": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    args = parser.parse_args()
    work = json.load(sys.stdin)
    began = time.perf_counter()
    scheduler = ov.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipe = ov.ContinuousBatchingPipeline(
        args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": work["threads"]}
    )
    print(json.dumps({"ready_seconds": time.perf_counter() - began}), flush=True)
    run(pipe, options(8), ["once upon a time"], 1)
    for prompts in work["prefill"]:
        print(json.dumps(prefill(pipe, prompts)), flush=True)
    for loop in work["loops"]:
        config = options(work["output_tokens"])
        print(json.dumps(run(pipe, config, loop["prompts"], loop["clients"])), flush=True)


if __name__ == "__main__":
    main()
