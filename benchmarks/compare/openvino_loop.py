"""OpenVINO GenAI's continuous batching, driven in its own process without HTTP, which flatters it.

Runs in an environment of its own (`pip install openvino-genai`); prints one JSON line per client count, with
the names that `headrace bench --json` uses. Closed loop: as soon as a request ends, the next one is added.

    python openvino_loop.py MODEL.gguf --concurrency 1,4,16 --input-words 256 --output-tokens 128
"""

import argparse
import json
import random
import time

import openvino_genai as ov

WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "community",
    "name",
    "president",
    "team",
    "minute",
    "idea",
    "kid",
    "body",
    "information",
    "back",
    "parent",
    "face",
    "others",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
    "history",
    "party",
    "result",
    "change",
    "morning",
    "reason",
    "research",
    "girl",
    "guy",
    "moment",
    "air",
    "teacher",
    "force",
    "education",
]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


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
            handle = pipe.add_request(request_id, text, config)
            running[request_id] = [handle, time.perf_counter(), False]
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
        "concurrency": clients,
        "requests": len(prompts),
        "output_tokens_per_second": tokens / seconds,
        "ttft_p50": percentile(ttft, 0.5),
        "ttft_p95": percentile(ttft, 0.95),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--concurrency", default="1,4,16,32")
    parser.add_argument("--input-words", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    began = time.perf_counter()
    scheduler = ov.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipe = ov.ContinuousBatchingPipeline(
        args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads}
    )
    print(json.dumps({"ready_seconds": time.perf_counter() - began}), flush=True)
    config = ov.GenerationConfig()
    config.max_new_tokens = args.output_tokens
    config.ignore_eos = True
    config.do_sample = False
    rng = random.Random(args.seed)
    for clients in map(int, args.concurrency.split(",")):
        count = max(4, args.requests_per_client * clients)
        prompts = [
            " ".join(rng.choice(WORDS) for _ in range(args.input_words)) for _ in range(count)
        ]
        print(json.dumps(run(pipe, config, prompts, clients)), flush=True)


if __name__ == "__main__":
    main()
