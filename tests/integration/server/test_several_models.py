"""Several models behind one real server process: loaded when they are asked for, evicted when others need the room."""

import os
import re
import signal
import threading

import httpx
import psutil
import pytest
from tests.support.fake_engine import POISON_EXIT
from tests.support.fake_server import FakeServer
from tests.support.patience import PATIENCE
from tests.support.processes import Stream, load, until

TOKEN = "not for everybody"


class Several(FakeServer):
    """A server of models by name."""

    def __init__(self, tmp_path, models, *, memory="auto", spare=True, timeout=PATIENCE, **fields):
        hosting = {"models_memory": memory, "spare_engine": spare, "model_load_timeout": timeout}
        security = {"control_token": TOKEN}
        super().__init__(tmp_path, models=models, hosting=hosting, security=security, **fields)

    def ask(self, model=None, path="/v1/completions", **body):
        body = {"prompt": "a", "max_tokens": 3, **body}
        return httpx.post(f"{self.url}{path}", json=body | ({"model": model} if model else {}))

    def order(self, name, **body):
        headers = {"x-headrace-control": TOKEN}
        return httpx.post(f"{self.url}/control/{name}", json=body, headers=headers)

    def states(self):
        return {m["name"]: m["state"] for m in load(self.url)["model_loads"]}

    def metric(self, name, **labels):
        text = httpx.get(f"{self.url}/metrics").text
        pairs = "".join(f'(?=[^}}]*{k}="{v}")' for k, v in labels.items())
        found = re.search(rf"^{name}{{{pairs}[^}}]*}} ([0-9.e+-]+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


class Asking:
    """A request on a thread."""

    def __init__(self, server, *args, **body):
        self._answer = None
        self._thread = threading.Thread(target=self._run, args=(server, args, body), daemon=True)
        self._thread.start()

    def _run(self, server, args, body):
        self._answer = server.ask(*args, **body)

    def join(self):
        self._thread.join(PATIENCE)
        assert self._answer is not None
        return self._answer


def test_models_are_loaded_when_they_are_asked_for_and_clients_are_told(tmp_path):
    with Several(tmp_path, {"a": {}, "b": {"max_num_seqs": 3}, "c": {}}) as server:
        assert "3 models, loaded are none" in server.lines[-1]
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert server.states() == {"a": "empty", "b": "empty", "c": "empty"}
        first = server.ask("b")
        assert first.status_code == 200, first.text
        assert float(first.headers["x-headrace-cold-start"]) > 0.0
        until(lambda: any("Loading the model 'b'" in line for line in server.lines), "a line")
        again = server.ask("b")
        assert again.status_code == 200
        assert "x-headrace-cold-start" not in again.headers
        assert server.states() == {"a": "empty", "b": "ready", "c": "empty"}
        default = server.ask()
        assert default.json()["model"] == "a", "the first is the default"
        cards = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [(card["id"], card["status"]) for card in cards] == [
            ("a", "ready"), ("b", "ready"), ("c", "empty"),
        ]  # fmt: skip
        report = load(server.url)
        assert (report["models"], report["state"]) == (["a", "b", "c"], "ready")
        assert report["max_num_seqs"] == 11
        assert server.metric("headrace_model_loads_total", model="b", outcome="loaded") == 1
        assert server.metric("headrace_cold_start_seconds_count", model="b") == 1
        assert server.metric("headrace_model_state", model="b", state="ready") == 1
        unknown = server.ask("d")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_every_route_finds_its_model(tmp_path):
    with Several(tmp_path, {"a": {}, "b": {}}) as server:
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/responses", {"input": "x", "max_output_tokens": 3}),
            ("/v1/messages", chat),
            ("/v1/embeddings", {"input": "x"}),
        ):
            answer = httpx.post(f"{server.url}{path}", json={"model": "b", "max_tokens": 3, **body})
            assert (answer.status_code, answer.json()["model"]) == (200, "b"), answer.text
        assert server.ask("b", "/tokenize").json()["count"] == 1
        assert server.states() == {"a": "empty", "b": "ready"}, "nothing else was needed"
        props = httpx.get(f"{server.url}/props?model=b").json()
        assert props["model_alias"] == "b"
        assert server.states()["a"] == "empty"


def test_the_one_used_least_recently_makes_room(tmp_path):
    models = {name: {"weights": 400} for name in "abc"}
    with Several(tmp_path, models, memory="1000") as server:
        for name in "aba":
            assert server.ask(name).status_code == 200
        assert server.ask("c").status_code == 200
        assert server.states() == {"a": "ready", "b": "empty", "c": "ready"}
        assert server.metric("headrace_model_evictions_total", model="b") == 1
        assert server.ask("b").status_code == 200
        assert server.states() == {"a": "empty", "b": "ready", "c": "ready"}
        assert server.metric("headrace_model_memory_bytes", model="a") == 0


def test_what_is_kept_is_there_at_once_and_stays(tmp_path):
    models = {"a": {"weights": 400, "keep": True}, "b": {"weights": 400}, "c": {"weights": 400}}
    with Several(tmp_path, models, memory="1000") as server:
        assert server.states()["a"] == "ready"
        for name in "bcbc":
            assert server.ask(name).status_code == 200
            assert server.states()["a"] == "ready"
        assert server.metric("headrace_model_evictions_total", model="a") == 0


def test_a_model_with_requests_is_not_evicted_and_others_wait_for_it(tmp_path):
    last = tmp_path / "last"
    models = {"a": {"weights": 600, "last": str(last)}, "b": {"weights": 600}}
    with Several(tmp_path, models, memory="1000") as server:
        stream = Stream(server.url, model="a", prompt="a", max_tokens=60).begun()
        waiting = Asking(server, "b")
        until(lambda: server.states()["b"] == "loading", "it waits for room")
        last.touch()
        assert len(stream.join().events) >= 60, "it was not cut short"
        assert stream.is_done
        assert waiting.join().status_code == 200
        assert server.states() == {"a": "empty", "b": "ready"}


def test_waiting_for_room_ends(tmp_path):
    last = tmp_path / "last"
    models = {"a": {"weights": 600, "last": str(last)}, "b": {"weights": 600}}
    with Several(tmp_path, models, memory="1000", timeout=0.3) as server:
        until(
            lambda: server.ask("a", max_tokens=0).status_code == 200, "it is loaded, if not at once"
        )
        stream = Stream(server.url, model="a", prompt="a", max_tokens=20).begun()
        refused = server.ask("b")
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert not stream.is_done
        assert server.ask("a", max_tokens=0).status_code == 200
        last.touch()
        assert stream.join().is_done


def test_a_model_that_never_fits_is_refused_with_the_figures(tmp_path):
    models = {"a": {"weights": 3 * 2**20, "keep": True}, "b": {"weights": 8 * 2**20}}
    with Several(tmp_path, models, memory="10MiB") as server:
        for _ in range(2):
            refused = server.ask("b")
            assert refused.status_code == 503
            assert (
                "8 MiB beside 3 MiB of models that are kept" in refused.json()["error"]["message"]
            )
        assert server.states() == {"a": "ready", "b": "empty"}
        assert server.ask("a").status_code == 200


def test_kept_models_that_do_not_fit_end_the_start(tmp_path):
    models = {"a": {"weights": 3 * 2**20, "keep": True}, "b": {}}
    server = Several(tmp_path, models, memory="1MiB", wait=False)
    assert server.wait() != 0
    assert "models_memory is 1 MiB" in server.lines[-1]
    server.close()


def test_many_requests_wait_for_one_load(tmp_path):
    with Several(tmp_path, {"a": {"start": 0.3}, "b": {}}) as server:
        askings = [Asking(server, "a") for _ in range(6)]
        answers = [asking.join() for asking in askings]
        assert {answer.status_code for answer in answers} == {200}
        assert server.metric("headrace_model_loads_total", model="a", outcome="loaded") == 1


def test_two_models_load_at_once(tmp_path):
    with Several(tmp_path, {"a": {"start": 0.3}, "b": {"start": 0.3}}) as server:
        askings = [Asking(server, name) for name in "ab"]
        assert [asking.join().json()["model"] for asking in askings] == ["a", "b"]


def test_a_model_that_cannot_be_loaded_says_why_and_leaves_the_others_alone(tmp_path):
    models = {"a": {}, "bad": {"fail_start": "No such tensor type."}}
    with Several(tmp_path, models) as server:
        refused = server.ask("bad")
        assert refused.status_code == 503
        assert "No such tensor type." in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert server.ask("a").status_code == 200

        def failed():
            return server.metric("headrace_model_loads_total", model="bad", outcome="failed")

        def refused_untried():
            before = failed()
            assert server.ask("bad").status_code == 503
            return failed() == before

        # The delay doubles: however slow this machine is, one of these comes before it has ended.
        until(refused_untried, "it is not tried each time")
        before = failed()
        until(lambda: server.ask("bad") and failed() > before, "it is tried again")


def test_an_engine_that_dies_takes_nobody_with_it(tmp_path):
    with Several(tmp_path, {"a": {"step": 0.02}, "b": {}}, spare=False) as server:
        assert server.ask("b").status_code == 200
        stream = Stream(server.url, model="a", prompt="a", max_tokens=60).begun()
        died = server.ask("b", prompt=[POISON_EXIT])
        assert (died.status_code, died.json()["error"]["code"]) == (500, "engine_died")
        assert server.ask("b").status_code == 200, "it waits until the engine is back"
        assert len(stream.join().events) >= 60
        assert stream.is_done
        assert server.metric("headrace_engine_restarts_total", model="a") == 0
        assert server.metric("headrace_engine_restarts_total", model="b") == 1


def test_a_spare_that_died_is_not_used(tmp_path):
    with Several(tmp_path, {"a": {}, "b": {}}) as server:
        (spare,) = psutil.Process(server.process.pid).children()
        os.kill(spare.pid, signal.SIGKILL)
        assert server.ask("a").status_code == 200


def test_no_process_is_left_behind(tmp_path):
    with Several(tmp_path, {"a": {"weights": 6}, "b": {"weights": 6}}, memory="10") as server:
        for name in "abab":
            assert server.ask(name).status_code == 200
        parent = psutil.Process(server.process.pid)
        until(lambda: len(parent.children()) == 2, "one engine and the spare")
        children = parent.children()
        server.signal()
        assert server.wait() == 0
        psutil.wait_procs(children, timeout=PATIENCE)
        assert not [child for child in children if child.is_running()]


def test_control_of_one_of_several(tmp_path):
    with Several(tmp_path, {"a": {}, "b": {}}) as server:
        assert server.order("park").status_code == 400, "which one?"
        assert server.order("load", model="b").json()["state"] == "ready"
        assert server.order("park", model="b").json()["state"] == "parked"
        woken = server.ask("b")
        assert woken.status_code == 200, "asking wakes it"
        assert "x-headrace-cold-start" in woken.headers
        assert server.order("unload", model="b").json()["state"] in ("empty", "loading")
        until(lambda: server.states()["b"] == "empty", "it is unloaded")
        assert server.order("load", model="c").status_code == 404
        refused = server.order("load", model="a", settings={"max_context": 64})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "settings")


@pytest.mark.parametrize("name", ["a", "b"])
def test_adapters_belong_to_their_model_and_come_back_with_it(tmp_path, name):
    root = tmp_path / "adapters"
    (root / "sql").mkdir(parents=True)
    models = {n: {"weights": 6, "settings": {"lora_root": str(root)}} for n in "ab"}
    with Several(tmp_path, models, memory="10") as server:

        def post(**body):
            return httpx.post(f"{server.url}/v1/load_lora_adapter", json=body)

        unclear = post(lora_name="sql", lora_path="sql")
        assert (unclear.status_code, unclear.json()["error"]["param"]) == (400, "model")
        assert post(lora_name="sql", lora_path="sql", model=name).status_code == 200
        assert server.ask("sql").json()["model"] == "sql"
        other = "b" if name == "a" else "a"
        assert server.ask(other).status_code == 200
        assert server.states()[name] == "empty"
        back = server.ask("sql")
        assert (back.status_code, back.json()["model"]) == (200, "sql"), "it brings its model back"
        assert server.states()[name] == "ready"
