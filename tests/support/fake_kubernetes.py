"""A Kubernetes API server for Deployments and pods that speaks the real protocol, with the controllers behind it.

Lists come in pieces with a continuation that may expire (410), writes of what has changed are conflicts (409), tokens
are refused once they are replaced (401). `settle` does what the Deployment's controllers do, `run_pods` what kubelets do.
"""

import json
import random
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
NAMESPACE = "llm"
COST = "controller.kubernetes.io/pod-deletion-cost"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


class RefusalError(Exception):
    """A Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class Use(NamedTuple):
    """What a role has to allow."""

    group: str
    resource: str
    verb: str


class FakeKubernetes:
    """Its state, and what a test may change of its behaviour. Calls may come from any thread."""

    def __init__(self, tokens: set[str]) -> None:
        self.tokens = tokens
        self.deployments: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.uses: set[Use] = set()
        self.num_conflicts = 0
        """So many writes of a scale come just after somebody else's."""
        self.num_expiries = 0
        """So many continuations are too old."""
        self.max_piece = 500
        self.settles = True
        """Controllers act at once."""
        self.answer: tuple[int, bytes] | None = None
        """What is answered instead of everything."""
        self.delay = threading.Event()
        self.delay.set()
        self.url = ""
        self._version = 100
        self._random = random.Random(7)
        self._lock = threading.RLock()

    # -- the cluster ------------------------------------------------------------------------------------

    def deploy(self, fleet: str, pool: str, replicas: int = 1) -> str:
        """What `kubectl apply` does."""
        name = f"{fleet}-{pool}"
        labels = {
            "headrace.dev/fleet": fleet,
            "headrace.dev/pool": pool,
            "headrace.dev/version": "v1",
        }
        self.deployments[name] = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"replicas": replicas},
        }
        self._touch(self.deployments[name])
        self.settle()
        return name

    def settle(self) -> None:
        """As many living pods as each Deployment is to have. Those that go are chosen as ReplicaSets choose."""
        with self._lock:
            for deployment in self.deployments.values():
                labels = deployment["metadata"]["labels"]
                own = [p for p in self.pods.values() if p["metadata"]["labels"] == labels]
                living = [p for p in own if _is_active(p)]
                wanted = deployment["spec"]["replicas"]
                for _ in range(wanted - len(living)):
                    self._make_pod(deployment)
                living.sort(key=_goes_first)
                for pod in living[: max(0, len(living) - wanted)]:
                    self._end_pod(pod, 30)

    def run_pods(self, *, leaves: bool = True) -> None:
        """Pods that wait get an address and run; `leaves`: those that end are gone."""
        with self._lock:
            for name, pod in list(self.pods.items()):
                if "deletionTimestamp" in pod["metadata"]:
                    if leaves:
                        del self.pods[name]
                elif pod["status"]["phase"] == "Pending":
                    number = 1 + len(self.pods) + self._random.randrange(200)
                    pod["status"] = {"phase": "Running", "podIP": f"10.0.0.{number % 250 + 1}"}
                    self._touch(pod)

    def names(self) -> list[str]:
        """Pods that are not ending."""
        return [name for name, pod in self.pods.items() if _is_active(pod)]

    def _make_pod(self, deployment: Object) -> None:
        name = f"{deployment['metadata']['name']}-{self._random.randrange(16**8):08x}"
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "labels": deployment["metadata"]["labels"],
            "creationTimestamp": "2026-11-30T08:00:00Z",
        }
        self.pods[name] = {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}}
        self._touch(self.pods[name])

    def _end_pod(self, pod: Object, grace: int) -> None:
        metadata = pod["metadata"]
        metadata["deletionTimestamp"] = "2026-11-30T09:00:00Z"
        metadata["deletionGracePeriodSeconds"] = grace
        self._touch(pod)

    def _touch(self, thing: Object) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)

    # -- the API ----------------------------------------------------------------------------------------

    def handle(self, method: str, target: str, token: str, kind: str, body: Any) -> Object | str:
        """What is answered. Raises RefusalError."""
        if token not in self.tokens:
            raise RefusalError(401, "Unauthorized", "Unauthorized")
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            for base, things, resource, group in (
                (_PODS, self.pods, "pods", ""),
                (_DEPLOYMENTS, self.deployments, "deployments", "apps"),
            ):
                if parts.path == base and method == "GET":
                    self.uses.add(Use(group, resource, "list"))
                    return self._list(resource, list(things.values()), query)
                if parts.path.startswith(f"{base}/"):
                    name, _, sub = parts.path.removeprefix(f"{base}/").partition("/")
                    if name not in things:
                        raise RefusalError(404, "NotFound", f'{resource} "{name}" not found')
                    return self._one(method, resource, sub, things[name], kind, body)
        raise RefusalError(404, "NotFound", "the server could not find the requested resource")

    def _list(self, resource: str, things: list[Object], query: dict[str, str]) -> Object:
        chosen = [thing for thing in things if _fits(thing, query.get("labelSelector", ""))]
        start, piece = 0, min(int(query.get("limit", "500")), self.max_piece)
        if "continue" in query:
            start = int(query["continue"])
            if self.num_expiries:
                self.num_expiries -= 1
                raise RefusalError(410, "Expired", "The provided continue parameter is too old")
        metadata: Object = {"resourceVersion": str(self._version)}
        if start + piece < len(chosen):
            metadata["continue"] = str(start + piece)
        return {
            "kind": f"{resource}List",
            "metadata": metadata,
            "items": chosen[start : start + piece],
        }

    def _one(
        self, method: str, resource: str, sub: str, thing: Object, kind: str, body: Any
    ) -> Object | str:
        group = "apps" if resource == "deployments" else ""
        verb = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        self.uses.add(Use(group, f"{resource}/{sub}" if sub else resource, verb))
        match (resource, sub, method):
            case ("deployments", "scale", "GET"):
                return _scale_of(thing)
            case ("deployments", "scale", "PUT"):
                return self._write_scale(thing, body)
            case ("pods", "log", "GET"):
                return "loading\nready\n"
            case ("pods", "", "GET"):
                return thing
            case ("pods", "", "PATCH"):
                if kind != "application/merge-patch+json":
                    raise RefusalError(415, "UnsupportedMediaType", f"the body was {kind}")
                _merge(thing, body)
                self._touch(thing)
                return thing
            case ("pods", "", "DELETE"):
                assert body["kind"] == "DeleteOptions"
                self._end_pod(thing, body["gracePeriodSeconds"])
                if self.settles:
                    self.settle()
                return thing
        raise RefusalError(405, "MethodNotAllowed", "the server does not allow this method")

    def _write_scale(self, deployment: Object, body: Any) -> Object:
        if (body["apiVersion"], body["kind"]) != ("autoscaling/v1", "Scale"):
            raise RefusalError(400, "BadRequest", "it is no Scale")
        if self.num_conflicts:
            self.num_conflicts -= 1
            self._touch(deployment)
        if body["metadata"]["resourceVersion"] != deployment["metadata"]["resourceVersion"]:
            raise RefusalError(
                409, "Conflict", "the object has been modified; please apply your changes"
            )
        deployment["spec"]["replicas"] = body["spec"]["replicas"]
        self._touch(deployment)
        if self.settles:
            self.settle()
        return _scale_of(deployment)


def _scale_of(deployment: Object) -> Object:
    metadata = {k: deployment["metadata"][k] for k in ("name", "namespace", "resourceVersion")}
    replicas = deployment["spec"]["replicas"]
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas},
    }


def _is_active(pod: Object) -> bool:
    ended = pod["status"]["phase"] in ("Failed", "Succeeded")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _goes_first(pod: Object) -> tuple[bool, int, int]:
    """kubernetes/pkg/controller/controller_utils.go, ActivePodsWithRanks: not running, then by cost, then the newest."""
    is_running = pod["status"]["phase"] == "Running"
    cost = int(pod["metadata"].get("annotations", {}).get(COST, 0))
    return is_running, cost, -int(pod["metadata"]["resourceVersion"])


def _fits(thing: Object, selector: str) -> bool:
    labels = thing["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, is_equal, value = part.partition("=")
        if name not in labels or (is_equal and labels[name] != value):
            return False
    return True


def _merge(thing: Object, patch: Any) -> None:
    """RFC 7386."""
    for name, value in patch.items():
        if isinstance(value, dict):
            _merge(thing.setdefault(name, {}), value)
        elif value is None:
            thing.pop(name, None)
        else:
            thing[name] = value


@contextmanager
def served(cluster: FakeKubernetes, tls: ssl.SSLContext | None = None) -> Iterator[FakeKubernetes]:
    """Until the block ends; its address is `cluster.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            cluster.delay.wait(10)
            if cluster.answer is not None:
                self.reply(*cluster.answer)
                return
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            try:
                found = cluster.handle(
                    self.command,
                    self.path,
                    token,
                    self.headers.get("content-type", ""),
                    json.loads(body) if body else None,
                )
            except RefusalError as refusal:
                status = {
                    "kind": "Status", "status": "Failure", "code": refusal.code,
                    "reason": refusal.reason, "message": str(refusal),
                }  # fmt: skip
                self.reply(refusal.code, json.dumps(status).encode())
                return
            text = found if isinstance(found, str) else json.dumps(found)
            self.reply(200, text.encode())

        do_GET = do_PUT = do_PATCH = do_DELETE = do_any  # noqa: N815

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    cluster.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield cluster
    finally:
        cluster.delay.set()
        server.shutdown()
        thread.join()
        server.server_close()
