"""The official client's files and batches against a real server with a real model."""

import json
import time

import pytest
from openai import NotFoundError, OpenAI
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess

MODEL = "smollm2-135m"
QUESTIONS = ["What is the capital of France?", "Name three fruits.", "What is two plus two?"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    kept = str(tmp_path_factory.mktemp("batches") / "kept")
    with ServeProcess(MODEL, "--port", "0", "--batch-dir", kept) as server:
        url = f"{server.wait_ready().url}/v1"
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
            yield client


def ask(question):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 12}


def test_the_official_client_has_a_batch_answered(client):
    lines = [
        {
            "custom_id": f"q{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": ask(question),
        }
        for n, question in enumerate(QUESTIONS)
    ]
    content = "\n".join(json.dumps(item) for item in lines).encode()
    file = client.files.create(
        file=("questions.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.filename, file.bytes, file.purpose) == ("questions.jsonl", len(content), "batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"about": "questions"},
    )
    end = time.monotonic() + PATIENCE
    while batch.status != "completed" and time.monotonic() < end:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.request_counts.completed == len(QUESTIONS)
    output = [json.loads(item) for item in client.files.content(batch.output_file_id).iter_lines()]
    for item, question in zip(output, QUESTIONS, strict=True):
        direct = client.chat.completions.create(model=MODEL, **ask(question))
        said = item["response"]["body"]["choices"][0]["message"]["content"]
        assert said == direct.choices[0].message.content
    assert [one.id for one in client.batches.list(limit=1)] == [batch.id]
    assert {one.id for one in client.files.list(limit=1)} == {file.id, batch.output_file_id}
    assert client.batches.cancel(batch.id).status == "completed"
    assert client.files.delete(file.id).deleted
    with pytest.raises(NotFoundError):
        client.files.retrieve(file.id)
