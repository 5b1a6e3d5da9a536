"""A template that comes with a request is rendered only if the operator trusts requests, and in the sandbox."""

import pytest
from tests.support.in_process import InProcess

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


async def ask(app, template):
    return await app.http.post("/v1/chat/completions", json={**BODY, "chat_template": template})


async def test_templates_of_requests_are_refused_by_default(tmp_path):
    async with InProcess(tmp_path) as app:
        answer = await ask(app, "{{ messages[0].content }}")
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("chat_template", "untrusted_template")
        assert "--trust-request-chat-template" in error["message"]
        for nothing in (None, ""):
            assert (await ask(app, nothing)).status_code == 200


async def test_a_trusted_one_is_rendered_and_counted(tmp_path):
    async with InProcess(tmp_path, security={"trust_request_chat_template": True}) as app:
        answer = await ask(app, "{% for m in messages %}<{{ m.content }}>{% endfor %}")
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] == len("<hi>")


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages.__class__.__mro__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "x" * 65_537,
        {"a": 1},
    ],
)
async def test_bad_ones_are_the_client_s_fault(tmp_path, template):
    async with InProcess(tmp_path, security={"trust_request_chat_template": True}) as app:
        answer = await ask(app, template)
        assert answer.status_code == 400, answer.text


async def test_too_many_messages_are_refused_by_number(tmp_path):
    async with InProcess(tmp_path) as app:
        many = [{"role": "user", "content": "x"}] * 4097
        answer = await app.http.post("/v1/chat/completions", json={"messages": many})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
        assert "4096" in answer.json()["error"]["message"]
