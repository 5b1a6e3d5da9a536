"""Instructor: objects by tools and by JSON, whole, in parts, in lists. HEADRACE_URL says where the server is."""

import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

MODEL = "smollm2-135m"


class Person(BaseModel):
    """Who somebody is."""

    model_config = ConfigDict(extra="forbid")  # else a tiny model goes on with fields of its own

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    mood: Literal["glad", "sad"]


class City(BaseModel):
    """A place."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=30)


ASK = [{"role": "user", "content": "Anna is 31 years old and glad. She lives in Rome."}]


def main(url: str) -> None:
    plain = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(plain, mode=mode)
        fields = {"model": MODEL, "messages": ASK, "max_retries": 0, "max_tokens": 200}
        person = client.chat.completions.create(
            response_model=Person, temperature=0, seed=1, **fields
        )
        assert isinstance(person, Person)
        assert person.mood in {"glad", "sad"}
        parts = list(
            client.chat.completions.create_partial(
                response_model=Person, temperature=0, seed=1, **fields
            )
        )
        assert len(parts) > 1
        assert parts[-1].model_dump() == person.model_dump()
        city, whole = client.chat.completions.create_with_completion(
            response_model=City, temperature=1, seed=2, **fields
        )
        assert isinstance(city, City)
        assert whole.usage.completion_tokens > 0
        print(mode, person, city)
    text = instructor.from_openai(plain).chat.completions.create(
        model=MODEL, messages=ASK, response_model=None, max_tokens=8
    )
    assert text.choices[0].message.content


if __name__ == "__main__":
    main(os.environ["HEADRACE_URL"])
