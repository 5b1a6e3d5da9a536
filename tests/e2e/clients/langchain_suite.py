"""LangChain's own standard tests of chat models, on `ChatOpenAI`. HEADRACE_URL says where the server is."""

import os
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestHeadrace(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": "smollm2-135m",
            "base_url": os.environ["HEADRACE_URL"] + "/v1",
            "api_key": "none",
            "max_tokens": 400,
            "temperature": 0.7,
            "frequency_penalty": 0.7,  # a tiny model repeats itself inside of strings, for ever
            "seed": 3,
            "stream_usage": True,
            "max_retries": 0,
            # One call where the tests expect one: a tiny model that may go on calling does.
            "extra_body": {"parallel_tool_calls": False},
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_image_inputs(self) -> bool:
        return False

    @pytest.mark.xfail(reason="JSON it is, but without a schema a model this small adds keys.")
    def test_json_mode(self, model: Any) -> None:
        super().test_json_mode(model)

    @pytest.mark.xfail(reason="With tool_choice auto a model this small does not choose to call.")
    def test_agent_loop(self, model: Any) -> None:
        super().test_agent_loop(model)
