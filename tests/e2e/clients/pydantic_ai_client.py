"""PydanticAI: text, stream, tools, and typed output three ways. HEADRACE_URL says where the server is."""

import asyncio
import os

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput, RunContext, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

MODEL = "smollm2-135m"
SETTINGS = ModelSettings(temperature=0, max_tokens=120, seed=1)


class Place(BaseModel):
    """A city and how many live there."""

    city: str = Field(max_length=30)
    people: int = Field(ge=0, le=50_000_000)


async def main(url: str) -> None:
    model = OpenAIChatModel(
        MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"), settings=SETTINGS
    )

    agent = Agent(model, instructions="Answer in one short sentence.")
    first = await agent.run("What is the capital of France?")
    assert first.output
    assert first.usage.output_tokens > 0
    second = await agent.run("And of Italy?", message_history=first.all_messages())
    assert second.output

    async with agent.run_stream("What is the capital of France?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == first.output
    assert len(pieces) > 2

    for kind in (ToolOutput(Place), NativeOutput(Place)):
        typed: Agent[None, Place] = Agent(model, output_type=kind, retries=0)
        place = (await typed.run("Rome has three million inhabitants.")).output
        assert isinstance(place, Place)
        async with typed.run_stream("Rome has three million inhabitants.") as stream:
            assert await stream.get_output() == place
        print(kind, place)

    asked: list[str] = []
    teller = Agent(model, output_type=ToolOutput(Place), retries=0)

    async def once(_: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
        return None if asked else tool

    @teller.tool_plain(prepare=once)
    def population(city: str) -> int:
        """How many people live in a city."""
        asked.append(city)
        return 2_750_000

    # With typed output the model must call something each time; a tiny one would ask for ever.
    result = await teller.run("How many people live in Rome? Call population, then answer.")
    assert isinstance(result.output, Place)
    assert len(asked) <= 1
    print("tools", asked, result.output)


if __name__ == "__main__":
    asyncio.run(main(os.environ["HEADRACE_URL"]))
