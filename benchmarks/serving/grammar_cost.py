"""What a grammar costs: the same engine, clients and lengths, with and without a schema, alternating.

Reports tokens per second of an engine in this process (no HTTP), so that nothing else hides the cost.
Every request makes exactly `--tokens` tokens: the schema is one that can always go on.

    python benchmarks/serving/grammar_cost.py --clients 16 --rounds 5
"""

import argparse
import json
import statistics
import time

from headrace.config.engine import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from headrace.core.clock import SystemClock
from headrace.core.grammar import Grammar, GrammarKind
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine
from headrace.preprocess.tokenizer import load_tokenizer

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
            "kind": {"enum": ["person", "animal", "machine"]},
            "email": {"type": "string", "pattern": "^[a-z]{1,9}@[a-z]{1,9}\\.com$"},
        },
        "required": ["name", "age", "tags", "kind", "email"],
        "additionalProperties": False,
    },
    "minItems": 1000,
}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
PROMPT = "<|im_start|>user\nList people as JSON.<|im_end|>\n<|im_start|>assistant\n"


def run(engine: Engine, prompt: list[int], args: argparse.Namespace, grammar, name: str):
    """(tokens per second, CPU seconds per thousand tokens) of one round, prompts aside."""
    for client in range(args.clients):
        params = SamplingParams(temperature=1.0, seed=client, max_tokens=args.tokens)
        engine.add(
            Request(
                request_id=f"{name}-{client}",
                prompt=(TokenSegment(prompt),),
                params=params,
                grammar=grammar,
            )
        )
    while engine.stats().num_running < args.clients:
        engine.step()
    tokens, began, cpu = 0, time.perf_counter(), time.process_time()
    while engine.has_work():
        tokens += sum(len(event.token_ids) for event in engine.step())
    seconds = time.perf_counter() - began
    return tokens / seconds, (time.process_time() - cpu) / tokens * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    config = EngineConfig(
        model=ModelConfig(model=args.model),
        scheduler=SchedulerConfig(max_num_seqs=args.clients),
        executor=ExecutorConfig(threads=args.threads),
    )
    built = build_engine(config, SystemClock(), lambda phase: None)
    prompt = load_tokenizer(built.info.path).encode(PROMPT, add_special=False)
    results: dict[str, list[tuple[float, float]]] = {"free": [], "schema": []}
    for number in range(-1, args.rounds):  # the first pair warms up
        for kind, grammar in (("free", None), ("schema", GRAMMAR)):
            result = run(built.engine, prompt, args, grammar, f"{kind}{number}")
            if number >= 0:
                results[kind].append(result)
    built.engine.close()
    speeds, costs = (
        {kind: statistics.median(r[i] for r in rounds) for kind, rounds in results.items()}
        for i in (0, 1)
    )
    pairs = [s[0] / f[0] for f, s in zip(results["free"], results["schema"], strict=True)]
    print(f"{args.clients} clients, {args.tokens} tokens each, {args.rounds} alternating rounds")
    for kind in results:
        print(f"{kind:6} {speeds[kind]:7.1f} tok/s {costs[kind]:7.2f} ms CPU per token")
    print(
        f"speed with a schema {speeds['schema'] / speeds['free']:.1%} (median of pairs"
        f" {statistics.median(pairs):.1%}), CPU {costs['schema'] / costs['free']:.1%}"
    )


if __name__ == "__main__":
    main()
