"""A call that must be made, its result, and the answer.

headrace serve smollm2-135m
python examples/tool_calling.py
"""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=f"{os.environ.get('HEADRACE_URL', 'http://127.0.0.1:8000')}/v1", api_key="none"
)
model = client.models.list().data[0].id


def get_weather(city: str, unit: str) -> str:
    return f"It is 21 degrees {unit} and sunny in {city}."


tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 40},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
            },
        },
    }
]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

asked = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=tools,
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    temperature=0,
    max_tokens=100,
)
message = asked.choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    print(f"{call.function.name}({arguments})")
    result = get_weather(**arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=60
)
print(answer.choices[0].message.content)
