"""Models that are parked, woken, loaded and unloaded by message, at a real server process with a fake engine."""

import json
import os
import signal

import httpx
import psutil
import pytest
from tests.support.fake_server import FakeServer, fake_source
from tests.support.patience import PATIENCE
from tests.support.processes import Stream, load, until

TOKEN = "not for everybody"
SECURITY = {"control_token": TOKEN}


class Controlled(FakeServer):
    """A server with a control token, and its orders."""

    def __init__(self, tmp_path, **fields):
        security = SECURITY | fields.pop("security", {})
        super().__init__(tmp_path, security=security, **fields)

    def order(self, name, **body):
        headers = {"x-headrace-control": TOKEN}
        return httpx.post(f"{self.url}/control/{name}", json=body, headers=headers)

    def shown(self):
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.get(f"{self.url}/control", headers=headers).json()

    def ask(self, **body):
        return httpx.post(
            f"{self.url}/v1/completions", json={"prompt": "a", "max_tokens": 3, **body}
        )

    def ready(self):
        return httpx.get(f"{self.url}/readyz").json()

    @property
    def engine(self):
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def is_served_by_another_than(self, pid):
        children = psutil.Process(self.process.pid).children()  # none for a moment, or two
        return self.ready()["state"] == "ready" and [c.pid for c in children if c.pid != pid]


def test_a_model_is_parked_and_woken(tmp_path):
    with Controlled(tmp_path) as server:
        assert server.ask().status_code == 200
        answer = server.order("park").json()
        assert (answer["model"], answer["state"]) == ("fake", "parked")
        assert server.ready() == {
            "status": "unready",
            "reason": "The engine is parked.",
            "state": "parked",
        }
        assert load(server.url)["state"] == "parked"
        refused = server.ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        tokenized = httpx.post(f"{server.url}/tokenize", json={"prompt": "ab"})
        assert tokenized.json()["count"] == 2, "that needs no engine"
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'headrace_model_state{model="fake",state="parked"} 1' in metrics
        assert server.order("park").json()["state"] == "parked", "again is no harm"
        assert server.order("unpark").json()["state"] == "ready"
        assert server.order("unpark").json()["state"] == "ready"
        assert server.ask().status_code == 200
        assert server.ready() == {"status": "ok", "reason": None, "state": "ready"}


def test_requests_end_before_their_model_is_parked(tmp_path):
    with Controlled(tmp_path, engine={"step": 0.02}) as server:
        stream = Stream(server.url, prompt="a", max_tokens=40).begun()
        assert server.order("park", timeout=PATIENCE).json()["state"] == "parked"
        assert stream.join().is_done
        assert len(stream.events) >= 40
        assert stream.events[-1]["choices"][0]["finish_reason"] == "length"


def test_requests_that_take_too_long_are_cut_short_and_told(tmp_path):
    with Controlled(tmp_path, engine={"step": 0.02}) as server:
        stream = Stream(server.url, prompt="a", max_tokens=1900).begun()
        assert server.order("park", timeout=0.1).json()["state"] == "parked"
        stream.join()
        assert "shutdown" in json.dumps(stream.events[-1]) or "error" in stream.events[-1]
        assert load(server.url)["num_running"] == 0


def test_a_drained_model_ends_what_it_has_and_takes_more_when_it_is_woken(tmp_path):
    with Controlled(tmp_path, engine={"step": 0.02}) as server:
        stream = Stream(server.url, prompt="a", max_tokens=1900).begun()
        assert server.order("drain", timeout=0.05).json()["state"] == "draining"
        assert load(server.url)["state"] == "draining"
        assert server.ask().status_code == 503
        assert not stream.is_done
        assert server.order("unpark").json()["state"] == "ready"
        assert server.ask().status_code == 200


def test_a_process_without_a_model_loads_one_and_gives_it_back(tmp_path):
    with Controlled(tmp_path, hosting={"start": "empty"}) as server:
        assert "without a model" in server.lines[-1]
        assert server.ready()["state"] == load(server.url)["state"] == "empty"
        refused = server.ask()
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            503,
            "No model is loaded.",
        )
        assert httpx.get(f"{server.url}/v1/models").json()["data"] == []
        pid = server.engine.pid
        source = fake_source(server.tokenizer, max_num_seqs=3)
        settings = {"max_context": 256, "kv-dtype": "int8"}
        answer = server.order(
            "load", model=source, served_model_name=["mine", "too"], settings=settings
        )
        assert answer.json()["state"] == "ready", answer.text
        cards = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in cards] == [
            ("mine", 256),
            ("too", 256),
        ]
        assert server.ask(model="too").status_code == 200
        assert server.ask(model="fake").status_code == 404
        report = load(server.url)
        assert (report["max_num_seqs"], report["models"]) == (3, ["mine", "too"])
        assert server.order("unload").json()["state"] == "empty"
        assert server.ask(model="mine").status_code == 503
        assert server.order("load").json()["model"] == "mine", "what it had last"
        os.kill(server.engine.pid, signal.SIGKILL)
        until(lambda: server.is_served_by_another_than(pid), "it is back")
        assert server.ask(model="mine").status_code == 200


def test_a_server_can_start_parked_and_load_what_is_parked(tmp_path):
    with Controlled(tmp_path, hosting={"start": "parked"}) as server:
        assert load(server.url)["state"] == "parked"
        assert server.order("unpark").json()["state"] == "ready"
        assert server.ask().status_code == 200
        source = fake_source(server.tokenizer)
        assert server.order("load", model=source, parked=True).json()["state"] == "parked"


def test_a_model_that_cannot_be_loaded_says_why_and_leaves_a_server_that_can_load(tmp_path):
    with Controlled(tmp_path) as server:
        pid = server.engine.pid
        broken = fake_source(server.tokenizer, fail_start="No such tensor type.")
        refused = server.order("load", model=broken)
        problem = refused.json()["error"]
        assert (refused.status_code, problem["param"]) == (400, "model")
        assert "No such tensor type." in problem["message"]
        assert server.ready()["state"] == "empty"
        assert server.order("load", model=fake_source(server.tokenizer)).status_code == 200
        assert (server.ask().status_code, server.engine.pid) == (200, pid)
        no_text = fake_source(tmp_path / "nowhere")
        refused = server.order("load", model=no_text)
        assert refused.status_code == 400, refused.text
        assert server.ready()["state"] == "empty"


def test_an_engine_that_dies_while_it_loads_fails_that_load_alone(tmp_path):
    with Controlled(tmp_path, hosting={"start": "empty"}) as server:
        gate = tmp_path / "gate"
        slow = fake_source(server.tokenizer, gate=str(gate))
        other = Order(server, "load", model=slow)
        until(lambda: server.ready()["state"] == "loading", "the load begins")
        until(lambda: "build" in server.ready()["reason"], "the engine is in it")
        os.kill(server.engine.pid, signal.SIGKILL)
        assert other.join().status_code == 503
        until(lambda: server.ready()["state"] == "empty", "another process waits")
        gate.touch()
        assert server.order("load", model=slow).status_code == 200


def test_orders_come_one_after_another(tmp_path):
    with Controlled(tmp_path, hosting={"start": "empty"}) as server:
        sources = [fake_source(server.tokenizer, start=0.2, max_num_seqs=n) for n in (2, 3)]
        orders = [Order(server, "load", model=source) for source in sources]
        orders.append(Order(server, "park"))
        answers = [order.join() for order in orders]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert answers[2].status_code in (200, 503), "parked, or there was nothing to park"
        assert load(server.url)["max_num_seqs"] in (2, 3)


class Order:
    """An order on a thread."""

    def __init__(self, server, name, **body):
        import threading

        self._answer = None
        self._thread = threading.Thread(target=self._run, args=(server, name, body), daemon=True)
        self._thread.start()

    def _run(self, server, name, body):
        self._answer = server.order(name, **body)

    def join(self):
        self._thread.join(PATIENCE)
        assert self._answer is not None
        return self._answer


def test_nobody_but_the_holder_of_the_token_gives_orders(tmp_path):
    security = {"api_keys": "alice:sk-alice"}
    with Controlled(tmp_path, security=security) as server:
        url = f"{server.url}/control/park"
        assert httpx.post(url).status_code == 401
        assert httpx.post(url, headers={"authorization": "Bearer sk-alice"}).status_code == 403
        assert httpx.post(url, headers={"x-headrace-control": "wrong"}).status_code == 403
        assert httpx.get(f"{server.url}/control").status_code == 401
        assert server.ready()["state"] == "ready"
        assert server.order("park").status_code == 200, "the token is enough"
        assert server.shown()["models"][0]["state"] == "parked"
        assert TOKEN not in "\n".join(server.lines)


def test_without_a_token_there_is_nothing_to_order(tmp_path):
    with FakeServer(tmp_path) as server:
        headers = {"x-headrace-control": ""}
        for path in ("/control/park", "/control/load", "/sleep"):
            assert httpx.post(f"{server.url}{path}", headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        ("park", {"timeout": -1}, "timeout"),
        ("park", {"timeout": "long"}, "timeout"),
        ("park", {"model": 5}, "model"),
        ("load", {"model": ""}, "model"),
        ("load", {"settings": {"model": "x"}}, "settings"),
        ("load", {"settings": {"max_context": "many"}}, "settings"),
        ("load", {"settings": {"port": 5}}, "settings"),
        ("load", {"settings": []}, "settings"),
        ("load", {"served_model_name": "x"}, "served_model_name"),
    ],
)
def test_orders_that_make_no_sense_name_the_field(controlled, name, body, param):
    refused = controlled.order(name, **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert controlled.ready()["state"] == "ready"


def test_models_that_there_are_not_are_404(controlled):
    assert controlled.order("park", model="other").status_code == 404


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    with Controlled(tmp_path_factory.mktemp("controlled")) as server:
        yield server


def test_vllms_words_for_it(tmp_path):
    with Controlled(tmp_path, dialect="vllm") as server:
        headers = {"x-headrace-control": TOKEN}

        def post(path):
            return httpx.post(f"{server.url}{path}", headers=headers).status_code

        def sleeping():
            return httpx.get(f"{server.url}/is_sleeping", headers=headers).json()["is_sleeping"]

        assert not sleeping()
        assert post("/sleep") == 200
        assert sleeping()
        assert load(server.url)["state"] == "parked"
        assert post("/wake_up") == 200
        assert post("/sleep?level=2") == 200
        assert sleeping()
        assert load(server.url)["state"] == "empty"
        assert post("/wake_up") == 200
        assert not sleeping()
        assert server.ask(model="fake").status_code == 200
        assert post("/sleep?level=3") == 400
        assert httpx.post(f"{server.url}/sleep").status_code == 401
