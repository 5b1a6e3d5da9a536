"""Microseconds of CPU to rate a prompt, over texts that are as bad as they come: `python benchmarks/gateway/classify.py`."""

from statistics import median
from time import process_time

from headrace.config.fleet.models import ClassifierConfig
from headrace.fleet.gateway.models.classify import classify

TEXTS = {
    "a greeting": "Hello!",
    "a page of English": "Prove that x = y and compare the theorem, step by step. " * 60,
    "1 MB of words": "word " * 200_000,
    "1 MB of code": "a = $x{ y };\n" * 80_000,
    "1 MB of line ends": "\n" * 1_000_000,
    "1 MB of spaces": " " * 1_000_000,
    "300,000 Chinese characters": "的" * 300_000,
}


def main() -> None:
    config = ClassifierConfig()
    print("| text | µs |")
    print("|---|--:|")
    for name, text in TEXTS.items():
        body = {"messages": [{"role": "user", "content": text}]}
        times = []
        for _ in range(15):
            start = process_time()
            for _ in range(20):
                classify(config, body)
            times.append((process_time() - start) / 20 * 1e6)
        print(f"| {name} | {median(times):.0f} |")


if __name__ == "__main__":
    main()
