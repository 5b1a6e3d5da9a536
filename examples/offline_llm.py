"""Use a model inside this process: no server, no port.

Run it:  .venv/bin/python examples/offline_llm.py
"""

from headrace import LLM

llm = LLM("smollm2-135m")
prompts = ["The capital of France is", "Water boils at"]
for prompt, answer in zip(
    prompts, llm.generate(prompts, max_tokens=16, temperature=0.0), strict=True
):
    print(f"{prompt}{answer.text}")
