"""Print an answer as it is made, with nothing but Python's standard library.

Run it:  .venv/bin/headrace serve     and, beside it,     python examples/stream_chat.py
"""

import json
import os
import urllib.request

body = {
    "messages": [{"role": "user", "content": "Tell me a very short story about a mill."}],
    "max_tokens": 64,
    "stream": True,
}
request = urllib.request.Request(
    os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000") + "/v1/chat/completions",
    data=json.dumps(body).encode(),
    headers={"Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    for line in response:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
print()
