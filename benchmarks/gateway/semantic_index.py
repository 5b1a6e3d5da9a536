"""What a search by meaning costs without numpy: signs first, cosines of the few that are left, against all cosines.

python benchmarks/gateway/semantic_index.py [--entries 4096] [--size 384]
"""

import argparse
import random
import statistics
import time

from headrace.fleet.cache.semantic.guards import differs
from headrace.fleet.cache.semantic.index import VectorIndex, cosine, vector_of

QUESTION = "Could you please tell me how I can export the monthly report for my team as a PDF file?"
OTHER = "How can I export the monthly report for my team as a PDF file?"


def timed(name: str, times: int, work: object) -> None:
    seconds = []
    for _ in range(times):
        started = time.thread_time()
        work()  # type: ignore[operator]
        seconds.append(time.thread_time() - started)
    print(f"{name:<34} p50 {statistics.median(seconds) * 1e6:9.0f} us")


def main(entries: int, size: int) -> None:
    draw = random.Random(1)
    centres = [[draw.gauss(0, 1) for _ in range(size)] for _ in range(entries // 8)]

    def near(centre: list[float], by: float) -> list[float]:
        return [value + draw.gauss(0, by) for value in centre]

    index = VectorIndex(max_entries=entries, max_scan=entries)
    vectors = [vector_of(near(centres[n % len(centres)], 0.6)) for n in range(entries)]
    for number, vector in enumerate(vectors):
        assert vector is not None
        index.add(b"%d" % number, b"c", "", vector)
    wanted = [vector_of(near(draw.choice(centres), 0.2)) for _ in range(50)]
    queries = iter(wanted * 4)
    raw = near(centres[0], 0.1)
    timed("a vector made of its numbers", 50, lambda: vector_of(raw))
    timed(f"search of {entries} by signs", 50, lambda: index.near(b"c", next(queries), 0.5))
    timed(f"search of {entries} by cosines", 5, lambda: max(cosine(wanted[0], v) for v in vectors))
    timed("guards on a pair of questions", 50, lambda: differs(QUESTION, OTHER))
    found = 0
    for query in wanted:
        best = max(range(entries), key=lambda n: cosine(query, vectors[n]))
        found += index.near(b"c", query, 0.0)[0].key == b"%d" % best
    print(f"nearest neighbour found: {found} of {len(wanted)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=4096)
    parser.add_argument("--size", type=int, default=384)
    args = parser.parse_args()
    main(args.entries, args.size)
