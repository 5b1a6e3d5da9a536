"""Replicas of one fleet on this machine: notes held against processes. Everything here blocks, briefly."""

import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.config import env
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, DriverError
from headrace.fleet.drivers.launching import (
    TOKEN_VARIABLE,
    new_id,
    noted,
    recalled,
    replica_spec,
    serve_arguments,
    serve_environment,
)
from headrace.fleet.drivers.local import cpus, output, process
from headrace.fleet.drivers.local.children import Children
from headrace.fleet.drivers.local.record import Phase, Record, Records
from headrace.fleet.drivers.local.spawn import SOCKET_FD, gated, is_command
from headrace.fleet.drivers.local.token import fleet_token
from headrace.fleet.drivers.protocol import Instance, InstanceState
from headrace.fleet.drivers.revision import revision_of
from headrace.web.port import bind

HOST: Final = "127.0.0.1"
#: Lines of a log that say why a replica ended, and that an operator is shown.
REASON_LINES: Final = 3
SHOWN_LINES: Final = 20

log = logging.getLogger("headrace.fleet")


class Machine:
    """Who calls it sees to it that no two calls run at once."""

    def __init__(
        self, directory: Path, clock: Clock, *, command: Sequence[str], max_log_bytes: int
    ) -> None:
        """`directory` is this fleet's own; `command` is what serves, before its flags.

        Raises DriverError for a directory that cannot be used, ConfigError for a machine that cannot.
        """
        self._boot = process.boot_id()
        if not self._boot:
            raise ConfigError("Replicas as local processes need Linux, with /proc.")
        self._records = Records(directory)
        self._token = fleet_token(directory)
        self._clock = clock
        self._command = tuple(command)
        self._max_log_bytes = max_log_bytes
        self._children = Children()
        self._mark = f"{TOKEN_VARIABLE}={self._token}".encode()

    # -- list -----------------------------------------------------------------------------------------

    def list(self) -> list[Instance]:
        """All there are. On the way: those that are late to end are killed, logs are kept short."""
        self._children.reap()
        found = [self._look_at(record) for record in self._records.read_all()]
        return [instance for instance in found if instance is not None]

    def _look_at(self, record: Record) -> Instance | None:
        """None: it is gone, and forgotten."""
        output.trim(self._records.log_path(record.id), self._max_log_bytes)
        if record.boot != self._boot:
            self._records.remove(record.id)  # the machine has started again since
            return None
        stat = self._process_of(record)
        if record.phase is Phase.STOPPING:
            if stat is None:
                self._forget(record)
                return None
            if self._clock.wall() >= record.deadline:
                log.warning("Replica %s has not ended in time and is killed", record.id)
                process.kill_session(stat)
            return _instance(record, InstanceState.STOPPING, self._spec(record))
        if stat is not None:
            state = InstanceState.PRESTARTED if record.is_prestarted else InstanceState.RUNNING
            return _instance(record, state, self._spec(record))
        if record.phase is not Phase.FAILED:
            record = replace(record, phase=Phase.FAILED, reason=self._ending(record))
            log.error("Replica %s has failed: %s", record.id, record.reason)
            process.kill_orphans(record.pid, self._mark)
            self._records.write(record)
        return _instance(record, InstanceState.FAILED, None)

    def _process_of(self, record: Record) -> process.Stat | None:
        """The process that was noted: same pid, start, session, user and command. None: it has ended."""
        stat = process.stat_of(record.pid)
        if stat is None or not stat.is_alive or stat.start != record.start:
            return None
        if stat.session != record.pid or not process.is_ours(record.pid):
            return None
        command = process.command_of(record.pid)
        # While a process becomes another program, as behind its gate, no command line of it is shown for a moment.
        return stat if not command or is_command(command, record.command) else None

    def _ending(self, record: Record) -> str:
        lines = output.last_lines(self._records.log_path(record.id), REASON_LINES)
        return ": ".join(filter(None, (self._children.ending_of(record.pid), " | ".join(lines))))

    def _forget(self, record: Record) -> None:
        process.kill_orphans(record.pid, self._mark)
        self._children.forget(record.pid)
        self._records.remove(record.id)

    # -- start ----------------------------------------------------------------------------------------

    def start(self, pool: PoolConfig, *, parked: bool = False) -> Instance:
        """Raises DriverError, ConfigError for a pool whose flags are wrong."""
        self._children.reap()
        count = round(pool.resources.cpus)
        taken = [r.cpus for r in self._records.read_all() if r.phase is not Phase.FAILED]
        tied = cpus.choose(cpus.available(), taken, count) if count else ()
        arguments = serve_arguments(pool, threads=len(tied), parked=parked)
        replica_id = new_id(pool.name)
        try:
            with bind(HOST, 0, setting="a free port") as sock:
                return self._spawn(pool, replica_id, arguments, tied, sock)
        except (OSError, ConfigError, DriverError) as error:
            self._records.remove(replica_id)
            raise DriverError(f"A replica of {pool.name} could not be started: {error}") from None

    def _spawn(
        self,
        pool: PoolConfig,
        replica_id: str,
        arguments: Sequence[str],
        tied: tuple[int, ...],
        sock: socket.socket,
    ) -> Instance:
        port = int(sock.getsockname()[1])
        command = (*self._command, f"--host={HOST}", f"--listen-fd={SOCKET_FD}", *arguments)
        spec = replica_spec(pool, replica_id=replica_id, url=_url(port), token=self._token)
        environment = env.child(serve_environment(self._token))
        with gated(command, environment, sock, self._records.log_path(replica_id)) as pid:
            self._children.add(pid)
            stat = process.stat_of(pid)
            if stat is None or not stat.is_alive:
                raise DriverError("its process ended at once.")
            if tied:
                os.sched_setaffinity(pid, tied)  # and what it starts inherits it
            record = Record(
                id=replica_id,
                pool=pool.name,
                pid=pid,
                start=stat.start,
                boot=self._boot,
                command=command,
                port=port,
                spec=msgspec.Raw(noted(spec)),
                version=pool.version,
                revision=revision_of(pool),
                started=self._clock.wall(),
                cpus=tied,
            )
            self._records.write(record)
        log.info("Replica %s is process %d at %s", replica_id, pid, spec.url)
        return _instance(record, InstanceState.RUNNING, spec)

    # -- stop -----------------------------------------------------------------------------------------

    def stop(self, replica_id: str, grace: float) -> float | None:
        """Tell it to end. `Clock.wall` at which it is killed; None: there is nothing to wait for."""
        self._children.reap()
        record = self._records.read(replica_id)
        if record is None:
            return None
        stat = self._process_of(record) if record.boot == self._boot else None
        if stat is None:
            self._forget(record)
            return None
        deadline = self._clock.wall() + grace
        if record.phase is Phase.STOPPING:
            deadline = min(deadline, record.deadline)
        record = replace(record, phase=Phase.STOPPING, deadline=deadline)
        self._records.write(record)
        if not grace:
            process.kill_session(stat)
        elif not record.is_signalled:
            # Noted first, so that its end is never taken for a failure; that it was told is noted last, so that
            # a controller that is killed in between leaves it to the next one to tell.
            process.send(stat, signal.SIGTERM)
            self._records.write(replace(record, is_signalled=True))
        return deadline

    # -- describe -------------------------------------------------------------------------------------

    def describe(self, replica_id: str) -> Mapping[str, str] | None:
        """Facts for an operator."""
        record = self._records.read(replica_id)
        if record is None:
            return None
        path = self._records.log_path(replica_id)
        return {
            "pid": str(record.pid),
            "address": _url(record.port),
            "command": " ".join(record.command),
            "cpus": ",".join(map(str, record.cpus)) or "all",
            "phase": str(record.phase),
            "reason": record.reason,
            "log": str(path),
            "last_lines": "\n".join(output.last_lines(path, SHOWN_LINES)),
        }

    def _spec(self, record: Record) -> ReplicaSpec:
        return recalled(
            bytes(record.spec),
            replica_id=record.id,
            url=_url(record.port),
            token=self._token,
            version=record.version,
        )


def _instance(record: Record, state: InstanceState, spec: ReplicaSpec | None) -> Instance:
    return Instance(
        id=record.id,
        pool=record.pool,
        version=record.version,
        revision=record.revision,
        state=state,
        spec=spec,
        started=record.started,
        reason=record.reason,
    )


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
