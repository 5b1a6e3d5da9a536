"""The Kubernetes driver: a Deployment for each pool, made by whoever deploys; here it is only scaled.

One fewer is three calls: the pod that has drained is marked to go first, the Deployment gets one replica less, the pod
is deleted with its grace. Whatever the Deployment's controller does in between, there is one fewer in the end, and it
is that pod: had it chosen another one, it makes a new one in its place.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from headrace.config.fleet.drivers import KubernetesConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.core.errors import DriverError
from headrace.fleet.drivers.kubernetes import pods
from headrace.fleet.drivers.kubernetes.api import Api, ApiError, Object
from headrace.fleet.drivers.kubernetes.credentials import Credentials
from headrace.fleet.drivers.protocol import Instance

_MERGE: Final = "application/merge-patch+json"
#: A Deployment that others change at the same moment: so often it is read and written again.
_SCALE_TRIES: Final = 6
_SCALE_PAUSE: Final = 0.05
_LOG_LINES: Final = 20

log = logging.getLogger("headrace.fleet")


class KubernetesDriver:
    """Implements `fleet.drivers.protocol.Driver`. Instances are pods, by name."""

    def __init__(self, fleet: str, config: KubernetesConfig) -> None:
        """Raises ConfigError where neither the API server nor the namespace can be known."""
        self._fleet = fleet
        self._config = config
        self._credentials = Credentials(config)
        namespace = quote(self._credentials.namespace, safe="")
        self._api = Api(config, self._credentials)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._selector = f"{pods.FLEET_LABEL}={fleet},{pods.POOL_LABEL}"
        self._lock = asyncio.Lock()
        _ = self._credentials.url

    async def list(self) -> Sequence[Instance]:
        """Whole lists, at each call; nothing is watched, and nothing missed."""
        deployments = await self._api.list(self._deployments, self._selector)
        found = await self._api.list(self._pods, self._selector)
        token = self._credentials.peer_token()
        return pods.instances_of(found, deployments, port=self._config.port, token=token)

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        """One replica more; its pod has a name when it is made, so what is returned stands for it."""
        if prestarted:
            raise DriverError("Pods of a Deployment cannot be started parked.")
        async with self._lock:
            deployment = await self._deployment_of(pool.name)
            await self._scale(deployment, 1)
        (made,) = pods.unplaced(deployment, pool.name, 1)
        return made

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """It is told to end, and its Deployment that it is not to be replaced."""
        async with self._lock:
            if pods.is_unplaced(instance_id):
                await self._stop_unplaced(instance_id)
                return
            found = await self._api.list(self._pods, self._selector)
            pod = next((pod for pod in found if pods.name_of(pod) == instance_id), None)
            if pod is None or pods.is_leaving(pod):
                return
            if not pods.has_ended(pod):
                await self._mark(pod, found)
                deployment = await self._deployment_of(pods.label(pod, pods.POOL_LABEL))
                await self._scale(deployment, -1)
            await self._delete(instance_id, grace)
            log.info("Pod %s is deleted", instance_id)

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        """Node, phase, restarts, and the end of its log, where we may read it."""
        path = f"{self._pods}/{quote(instance_id, safe='')}"
        try:
            pod = await self._api.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        facts = pods.facts_of(pod)
        with contextlib.suppress(ApiError):
            text = await self._api.text("GET", f"{path}/log?tailLines={_LOG_LINES}")
            facts["last_lines"] = text.decode(errors="replace")
        return facts

    async def close(self) -> None:
        """Pods run on."""
        self._api.close()

    async def _deployment_of(self, pool: str) -> str:
        """The name of its Deployment. Raises DriverError if there is not just one."""
        selector = f"{pods.FLEET_LABEL}={self._fleet},{pods.POOL_LABEL}={pool}"
        found = await self._api.list(self._deployments, selector)
        if len(found) != 1:
            raise DriverError(
                f"There are {len(found)} Deployments with {selector}; the pool {pool} needs one."
            )
        return pods.name_of(found[0])

    async def _scale(self, deployment: str, change: int) -> None:
        """By the scale subresource; what it is based on is named, so that nobody's change is undone."""
        path = f"{self._deployments}/{quote(deployment, safe='')}/scale"
        for attempt in range(_SCALE_TRIES):
            scale = await self._api.call("GET", path)
            wanted = max(0, pods.replicas_of(scale) + change)
            spec = {**pods.table(scale.get("spec")), "replicas": wanted}
            try:
                await self._api.call("PUT", path, {**scale, "spec": spec})
            except ApiError as error:
                if error.status != 409:
                    raise
                await asyncio.sleep(_SCALE_PAUSE * attempt)
            else:
                log.info("Deployment %s is to have %d replicas", deployment, wanted)
                return
        raise DriverError(f"The Deployment {deployment} is being changed by others all the time.")

    async def _stop_unplaced(self, instance_id: str) -> None:
        """One replica less, if there is still one without a pod: that one goes first by itself."""
        current = await self.list()
        found = next((i for i in current if i.id == instance_id), None)
        if found is not None:
            await self._scale(await self._deployment_of(found.pool), -1)

    async def _mark(self, pod: Object, others: Sequence[Object]) -> None:
        """It goes first, and none that was marked before and stayed."""
        pool = pods.label(pod, pods.POOL_LABEL)
        for other in others:
            if pods.label(other, pods.POOL_LABEL) == pool and pods.is_marked(other):
                await self._annotate(pods.name_of(other), None)
        await self._annotate(pods.name_of(pod), pods.GOES_FIRST)

    async def _annotate(self, pod: str, cost: str | None) -> None:
        path = f"{self._pods}/{quote(pod, safe='')}"
        patch = {"metadata": {"annotations": {pods.COST_ANNOTATION: cost}}}
        await self._unless_gone("PATCH", path, patch, kind=_MERGE)

    async def _delete(self, pod: str, grace: float) -> None:
        path = f"{self._pods}/{quote(pod, safe='')}"
        options = {
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": max(0, round(grace)),
        }  # fmt: skip
        await self._unless_gone("DELETE", path, options)

    async def _unless_gone(
        self, method: str, path: str, body: Object, *, kind: str = "application/json"
    ) -> None:
        """Whatever somebody else has removed meanwhile is as it should be."""
        try:
            await self._api.call(method, path, body, kind=kind)
        except ApiError as error:
            if error.status != 404:
                raise
