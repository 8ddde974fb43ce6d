"""Steps with an MPS daemon of their own, below the run's directory: it is started as the agent does, and
ended.

No compute mode is changed: in default mode MPS works, too, while nothing else is on the GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from partage.edges.host import procfs
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.daemon_logs import end_of_log
from partage.edges.mps.keeper import MpsKeeper
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.processes import wait_until
from partage.errors import DaemonError, PartageError, Unsupported
from partage.lab.tenant import OK, TenantFailed, TenantProcess
from partage.model.mps import DaemonSpec, DaemonState, MpsServer
from partage.units import MIB
from tools.on_gpu import read_only
from tools.on_gpu.notes import Notes, StepPlace, ask
from tools.on_gpu.tenant_steps import measure, prove

_THREADS = 50
_LONG_KERNELS = "pi 33554432 100000"
"""A minute and more of kernels, on any GPU."""
_PROMISES = "mps-below-limit,mps-over-limit,mps-raise-memory,mps-lower-memory,mps-unseen-gpu"
_LIMIT_S, _CLIENT_S, _ORPHAN_S = 10.0, 10.0, 20.0
_ENVIRONMENT_MIB = 2048


class _Mps:
    """A daemon, its files, and questions to it."""

    def __init__(self, place: StepPlace, state: DaemonState) -> None:
        self.state = state
        self.paths = DaemonPaths.of(place.run_dir, place.gpu)
        driver = DriverFiles(place.driver_root)
        self.control = ControlV2(driver.program, driver.environment(self.paths))
        self.keeper = MpsKeeper(place.run_dir, place.driver_root)

    async def clients(self) -> tuple[int, ...]:
        servers = await self.control.servers()
        found = await self.control.clients(servers)
        return tuple(client.pid for server in servers for client in found.get(server, ()))

    async def has(self, pid: int) -> bool:
        """Whether this process is a client, as soon as it is."""

        async def listed() -> bool:
            return pid in await self.clients()

        return await wait_until(listed, _CLIENT_S)


@asynccontextmanager
async def _daemon(place: StepPlace, *, limited: bool = True) -> AsyncIterator[_Mps]:
    """A daemon. limited: its clients have half of the GPU. Raises DaemonError, Unsupported."""
    limits = (place.memory_bytes // 2 // MIB * MIB, _THREADS) if limited else (None, None)
    keeper = MpsKeeper(place.run_dir, place.driver_root)
    try:
        yield _Mps(place, await keeper.start(DaemonSpec(place.gpu, place.gpu, *limits)))
    finally:
        await keeper.stop(place.gpu, force=True)


async def _lacking(place: StepPlace, notes: Notes, row: str, error: PartageError) -> None:
    """Why there is no daemon to look at."""
    log = end_of_log(DaemonPaths.of(place.run_dir, place.gpu).log / "control.log")
    notes.keep("control.log", log)
    notes.not_here(row, f"an MPS daemon that serves: {error}")


async def mps(place: StepPlace, notes: Notes) -> None:
    """The daemon, its limits, a client, and the promises of its shares."""
    try:
        async with _daemon(place) as daemon:
            notes.keep("daemon", daemon.state)
            notes.seen("control-program", f"{daemon.state.phase}, limits read back: {daemon.state.limits}")
            tenant = await place.tenant(daemon.paths.pipe)
            try:
                notes.keep("clientIsListed", await daemon.has(tenant.pid))
                notes.keep("ps", await daemon.control.ask("ps"))
                facts = await tenant.ask("facts")
                notes.keep("client", facts)
            finally:
                await tenant.end()
            only = ("--only", _PROMISES, "--engine", "cuda")
            await prove(place, notes, "mps-promises", *only, expected=2)
    except Unsupported as error:
        notes.not_here("control-program", str(error))
        notes.not_here("mps-promises", str(error))
    except (DaemonError, TenantFailed) as error:
        row = "mps-promises" if "control-program" in notes.rows else "control-program"
        notes.contradicted(row, str(error))


async def mps_environment(place: StepPlace, notes: Notes) -> None:
    """A daemon that has its limits by its environment alone: what it says of them, and of a server's."""
    driver, pipe, log = DriverFiles(place.driver_root), place.work / "pipe", place.work / "log"
    pipe.mkdir()
    log.mkdir()
    paths = DaemonPaths.of(place.run_dir, place.gpu)
    environment = driver.environment(paths) | {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
        "CUDA_VISIBLE_DEVICES": place.gpu,
    }
    try:
        program = driver.program()
    except Unsupported as error:
        notes.not_here("mps-environment", str(error))
        return
    control = ControlV2(driver.program, environment)
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={_ENVIRONMENT_MIB}M"}
    started = await ask(str(program), "-d", limit_s=_LIMIT_S, **{**environment, **limit})
    try:
        said: dict[str, object] = {"start": started.words if started.code else ""}
        for command in ("get_default_device_pinned_mem_limit 0", "start_server -uid 0", "get_server_list"):
            said[command] = await control.ask(command)
        server = await _ready_server(control)
        notes.keep("said", said)
        if server is None:
            why = end_of_log(log / "control.log")
            notes.keep("control.log", why)
            notes.not_here("mps-environment", "an MPS server, which does not start here")
            return
        said["of the server"] = await control.ask(f"get_device_pinned_mem_limit {server} 0")
        notes.keep("said", said)
        of_server = str(said["of the server"]).strip()
        default = str(said["get_default_device_pinned_mem_limit 0"]).strip()
        words = f"default: {default or 'nothing'}; of the server: {of_server or 'nothing'}"
        notes.judge("mps-environment", bool(of_server), words)
    except DaemonError as error:
        notes.contradicted("mps-environment", str(error))
    finally:
        with contextlib.suppress(DaemonError):
            await control.quit_by_force()


async def _ready_server(control: ControlV2) -> int | None:
    """The server that answers for itself; None if there is none in the end: one that fails is listed for a
    moment, too (seen with 555).
    """
    servers: tuple[MpsServer, ...] = ()

    async def settled() -> bool:
        nonlocal servers
        servers = await control.listed()
        return all(one.is_ready for one in servers)

    await wait_until(settled, _LIMIT_S)
    return next((one.pid for one in servers if one.is_ready), None)


async def read_only_pipe(place: StepPlace, notes: Notes) -> None:
    """The same client twice, first with a pipe that can be written: only then the second says something."""
    try:
        async with _daemon(place) as daemon:
            first = await _is_client(place, daemon, ())
            if first != OK:
                notes.not_here("read-only-pipe", f"clients that can be told apart from others: {first}")
                return
            before = (sys.executable, "-P", read_only.__file__, str(daemon.paths.pipe))
            second = await _is_client(place, daemon, before)
            if f"exit code {read_only.FAILED}" in second:
                notes.not_here("read-only-pipe", f"a mount of one's own: {second}")
                return
            notes.judge("read-only-pipe", second == OK, "it is a client" if second == OK else second)
    except (DaemonError, Unsupported) as error:
        await _lacking(place, notes, "read-only-pipe", error)


async def _is_client(place: StepPlace, daemon: _Mps, before: tuple[str, ...]) -> str:
    """``ok``, or why it is no client."""
    try:
        tenant = await place.tenant(daemon.paths.pipe, before=before)
    except TenantFailed as error:
        return str(error)
    try:
        answer = await tenant.attempt("launch")
        if answer != OK:
            return f"its kernel got {answer}"
        return OK if await daemon.has(tenant.pid) else "it works, and the daemon does not list it as a client"
    except TenantFailed as error:
        return str(error)
    finally:
        await tenant.end()


async def bench_mps(place: StepPlace, notes: Notes) -> None:
    """The pi program under MPS, beside the other ways, with the same daemon idle."""
    try:
        async with _daemon(place, limited=False):
            await measure(place, notes, "bench-mps", "--processes", "1,2,4,8", "--only", "pi")
    except (DaemonError, Unsupported) as error:
        await _lacking(place, notes, "bench-mps", error)


async def mps_ends(place: StepPlace, notes: Notes) -> None:
    """How clients and daemons end: by command in a kernel, by kill -9 in a kernel, and without their
    daemon.
    """
    for look in (_terminated, _killed, _orphaned):
        try:
            async with _daemon(place) as daemon:
                await look(place, notes, daemon)
        except (DaemonError, Unsupported) as error:
            await _lacking(place, notes, _ROW_OF[look.__name__], error)
        except TenantFailed as error:
            notes.not_here(_ROW_OF[look.__name__], f"tenants that work: {error}")


_ROW_OF = {"_terminated": "terminate", "_killed": "wedged", "_orphaned": "server-logs"}


@asynccontextmanager
async def _busy_and_neighbour(
    place: StepPlace, daemon: _Mps
) -> AsyncIterator[tuple[TenantProcess, TenantProcess]]:
    """Two clients, the first with kernels in flight. Raises TenantFailed where it is no client."""
    tenants: list[TenantProcess] = []
    try:
        tenants += [await place.tenant(daemon.paths.pipe), await place.tenant(daemon.paths.pipe)]
        for tenant in tenants:
            if not await daemon.has(tenant.pid):
                raise TenantFailed("error", "works, and the daemon does not list it as a client")
        await tenants[0].ask(_LONG_KERNELS)
        working = asyncio.create_task(tenants[0].attempt("go 0"), name="kernels")
        done, _ = await asyncio.wait({working}, timeout=1.0)
        if done:
            raise TenantFailed("error", f"kernels did not last a second: {working.result()}")
        yield tenants[0], tenants[1]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    finally:
        await asyncio.gather(*(tenant.end() for tenant in tenants))


async def _terminated(place: StepPlace, notes: Notes, daemon: _Mps) -> None:
    async with _busy_and_neighbour(place, daemon) as (busy, neighbour):
        (server,) = await daemon.control.servers()
        began = time.monotonic()
        try:
            await daemon.keeper.terminate(place.gpu, server, busy.pid)
            words = f"it was gone after {time.monotonic() - began:.2f} s"
            good = True
        except DaemonError as error:
            words, good = str(error), False
        answer = await neighbour.attempt("launch")
        notes.judge("terminate", good and answer == OK, f"{words}; its neighbour's next kernel: {answer}")


async def _killed(place: StepPlace, notes: Notes, daemon: _Mps) -> None:
    async with _busy_and_neighbour(place, daemon) as (busy, neighbour):
        (server,) = await daemon.control.servers()
        os.kill(busy.pid, signal.SIGKILL)
        said = {}
        for after_s in (0, 1, 5):
            await asyncio.sleep(after_s)
            said[f"status {after_s} s later"] = (
                await daemon.control.ask(f"get_server_status {server}")
            ).strip()
        said["neighbour"] = await neighbour.attempt("launch")
    said["status without clients"] = (await daemon.control.ask("get_server_list")).strip() or "no server"
    try:
        fresh = await place.tenant(daemon.paths.pipe)
        try:
            said["new client"] = await fresh.attempt("launch")
        finally:
            await fresh.end()
    except TenantFailed as error:
        said["new client"] = str(error)
    notes.keep("killed", said)
    said_fault = any("FAULT" in text.upper() for text in said.values())
    words = "; ".join(f"{what}: {text}" for what, text in said.items())
    notes.judge("wedged", said["new client"] == OK or said_fault, words)


async def _orphaned(place: StepPlace, notes: Notes, daemon: _Mps) -> None:
    async with _busy_and_neighbour(place, daemon):
        (server,) = await daemon.control.servers()
        files = sorted(path for path in _open_files(server) if path.startswith(f"{daemon.paths.log}/"))
        assert daemon.state.pid is not None, "it serves"
        os.kill(daemon.state.pid, signal.SIGKILL)
        began = time.monotonic()

        async def has_ended() -> bool:
            return not procfs.exists(server)

        ended = await wait_until(has_ended, _ORPHAN_S)
        lived = (
            f"it ended {time.monotonic() - began:.1f} s later"
            if ended
            else f"it still ran {_ORPHAN_S:g} s later"
        )
    names = ", ".join(Path(file).name for file in files) or "no log"
    words = f"the server had {names} open; without its daemon {lived}"
    notes.judge("server-logs", bool(files), words)


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found
