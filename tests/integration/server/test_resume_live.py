"""A connection that really breaks, over sockets: the answer goes on for the client that comes back."""

import json

import httpx
from tests.support.fake_server import FakeServer
from tests.support.processes import settle

BODY = {"prompt": "hi", "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": 3}


def test_a_broken_connection_is_taken_up_again(tmp_path):
    with FakeServer(tmp_path, engine={"step": 0.002}, resume_window=1 << 20) as server:
        url = f"{server.url}/v1/completions"
        whole = "".join(_texts(httpx.post(url, json=BODY).text.splitlines()))
        seen = []
        with httpx.stream("POST", url, json=BODY) as stream:
            for line in stream.iter_lines():
                seen.append(line)
                if len(seen) >= 60 and not line:
                    break
        last = next(line for line in reversed(seen) if line.startswith("id: "))[4:]
        again = httpx.get(
            f"{server.url}/v1/streams/{last.partition('/')[0]}",
            headers={"last-event-id": last},
        )
        assert again.headers["content-type"].startswith("text/event-stream")
        assert again.text.endswith("data: [DONE]\n\n")
        assert "".join(_texts([*seen, *again.text.splitlines()])) == whole
        assert len(whole) == 200
        assert settle(server.url)["kv_blocks_used"] == 0


def _texts(lines):
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [json.loads(item)["choices"][0]["text"] for item in data if item != "[DONE]"]
