"""Canaries over the admin API and `headrace fleet`: how they stand, and trying one again."""

import json

import pytest
from starlette.routing import Router
from tests.support.fake_clock import FakeClock

from headrace.cli import fleet
from headrace.config.fleet.models import Arm, ModelRule, ModelsConfig, RollbackConfig
from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.fleet.gateway.admin.canaries import CanariesAdmin
from headrace.fleet.gateway.admin.door import Door
from headrace.fleet.gateway.models.canary import Canaries, Outcome
from headrace.fleet.gateway.models.values import Trial
from headrace.web.keys import KeyRing
from headrace.web.middleware import Problems

ROLLBACK = RollbackConfig(min_samples=2, breaches=1, period=1.0)
RULE = ModelRule(
    name="org/chat",
    split=(Arm(model="old"), Arm(model="new", canary=True, weight=0.1)),
    rollback=ROLLBACK,
)


class Desk:
    def __init__(self):
        self.clock = FakeClock()
        self.canaries = Canaries(ModelsConfig(rules=(RULE,)))
        ring = KeyRing(SecurityConfig(api_keys=Secret("operator")), self.clock)
        admin = CanariesAdmin(self.canaries, Door(ring), self.clock)
        self._router = Router(admin.endpoints(), redirect_slashes=False)
        self._app = Problems(self._routed, lambda _: lambda answer: answer.body)

    async def _routed(self, scope, receive, send):
        scope["app"] = self._routed
        await self._router(scope, receive, send)

    def fail(self):
        for number in range(4):
            now = self.clock.monotonic() + 2 * number
            self.canaries.note(
                Trial(rule=RULE.name, arm="new"), Outcome(is_error=True, seconds=None), now
            )
            self.canaries.note(
                Trial(rule=RULE.name, arm="old"), Outcome(is_error=False, seconds=0.1), now
            )
        return self.canaries.off(self.clock.monotonic())

    async def call(self, method, path, key="operator"):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {
            "type": "http", "method": method, "path": f"/admin{path}", "headers": headers,
            "query_string": b"", "headrace.request_id": "r", "root_path": "",
        }  # fmt: skip
        await self._app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))


async def test_one_that_is_off_is_shown_and_tried_again():
    desk = Desk()
    status, found = await desk.call("GET", "/canaries")
    assert (status, found["canaries"][0]["state"]) == (200, "on")
    assert desk.fail()
    _, found = await desk.call("GET", "/canaries")
    (one,) = found["canaries"]
    assert (one["rule"], one["state"], one["breaches"]) == ("org/chat", "off", 1)
    assert one["reason"].startswith("errors 100.0%")
    status, done = await desk.call("POST", "/canaries/org/chat/reset")
    assert (status, done["message"]) == (200, "The canary of org/chat is tried again.")
    assert not desk.canaries.off(desk.clock.monotonic())


async def test_what_has_none_and_who_may_not():
    desk = Desk()
    assert (await desk.call("POST", "/canaries/nobody/reset"))[0] == 404
    assert (await desk.call("GET", "/canaries", "guess"))[0] == 401
    assert (await desk.call("POST", "/canaries/org/chat/reset", "guess"))[0] == 401


def test_the_command_asks_for_it(monkeypatch, capsys):
    asked = []

    class Client:
        def call(self, method, path, body=None):
            asked.append((method, path))
            one = {"rule": "org/chat", "state": "off", "reason": "errors", "breaches": 3}
            return {"canaries": [one], "message": "done"}

    monkeypatch.setattr(fleet, "admin_client", lambda _: Client())
    assert fleet.main(["canaries"]) == 0
    assert "org/chat" in capsys.readouterr().out
    assert fleet.main(["reset", "org/chat"]) == 0
    assert asked == [("GET", "/canaries"), ("POST", "/canaries/org%2Fchat/reset")]
    with pytest.raises(Exception, match="takes a rule"):
        fleet.main(["reset"])
