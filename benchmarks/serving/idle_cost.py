"""What an idle server takes after one chat: memory of its processes, and CPU over 15 seconds.

python benchmarks/serving/idle_cost.py [--model smollm2-135m]
"""

import argparse
import json
import time
import urllib.request

import psutil

from headrace.cli.local_server import local_server

SECONDS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    options = parser.parse_args()
    with local_server([options.model], ready_timeout=120.0) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 32}
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()
        time.sleep(2.0)
        root = psutil.Process(server.pid)
        tree = [root, *root.children(recursive=True)]
        before = sum(sum(one.cpu_times()[:2]) for one in tree)
        time.sleep(SECONDS)
        cpu = sum(sum(one.cpu_times()[:2]) for one in tree) - before
        memory = sum(one.memory_info().rss for one in tree)
    print(f"{memory / 1e6:.0f} MB RSS in {len(tree)} processes, {100 * cpu / SECONDS:.2f} % CPU")


if __name__ == "__main__":
    main()
