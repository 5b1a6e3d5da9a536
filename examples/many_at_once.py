"""Many requests at once: the engine batches them, and each answer is what it would be alone.

Run it:  .venv/bin/headrace serve     and, beside it,     python examples/many_at_once.py
"""

import asyncio
import os

from openai import AsyncOpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000") + "/v1"
QUESTIONS = [f"What is {number} plus {number}?" for number in range(1, 9)]


async def ask(client: AsyncOpenAI, model: str, question: str) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        seed=7,
    )
    return answer.choices[0].message.content or ""


async def main() -> None:
    async with AsyncOpenAI(base_url=URL, api_key="none") as client:
        model = (await client.models.list()).data[0].id
        together = await asyncio.gather(*(ask(client, model, q) for q in QUESTIONS))
        alone = await ask(client, model, QUESTIONS[3])
    for question, answer in zip(QUESTIONS, together, strict=True):
        print(f"{question}  {answer.strip()}")
    print("same alone and in company:", alone == together[3])


asyncio.run(main())
