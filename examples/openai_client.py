"""Ask the server with the official OpenAI client (`pip install openai`).

Run it:  .venv/bin/headrace serve     and, beside it,     python examples/openai_client.py
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none"
)
with client:
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Name three rivers of Europe."}],
        max_tokens=48,
        temperature=0,
    )
print(answer.choices[0].message.content)
print(f"{answer.usage.prompt_tokens} tokens in, {answer.usage.completion_tokens} out")
