"""Steps that only look: the driver beside nvidia-smi, the recorded node, the agent's metrics, MIG
geometry.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from partage.edges.files import catalogue
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvidia_smi import run_nvidia_smi
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.port import Hardware
from partage.edges.host import procfs
from partage.edges.host.own_task import end_group
from partage.errors import HardwareError, Unsupported
from partage.model.gpu import Gpu
from partage.model.samples import GpuSample
from partage.units import MIB
from tools.on_gpu.notes import Notes, StepPlace, partage
from tools.on_gpu.put_back import found, opened

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # netdevice(7)
_SMI_S = 30.0
_EVENTS_S = 1.0
_AGENT_S = 30.0
_MEMORY_SLACK = 64 * MIB
"""Memory that changes between two looks: contexts of monitors come and go."""
_SLACK = {"temperature": 5.0, "power": 0.5, "clocks": 0.5, "utilization": 1.0, "memory.used": 0.0}


async def smi(place: StepPlace, *arguments: str) -> str:
    """What nvidia-smi says, in one line. Raises HardwareError, also where it refuses."""
    host = Host(driver=place.driver_root)
    said = await run_nvidia_smi(host, "a comparison", *arguments, deadline_s=_SMI_S)
    if said.code:
        raise Unsupported(f"nvidia-smi {' '.join(arguments)}: {said}")
    return said.output


async def smi_field(place: StepPlace, field: str) -> str | None:
    """One field of the GPU; None where nvidia-smi does not know it, or the GPU has none."""
    try:
        text = await smi(place, f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", place.gpu)
    except Unsupported:
        return None
    return None if re.fullmatch(r"\[?(n/a|not supported|unknown error)\]?", text.lower()) else text


# --- driver ------------------------------------------------------------------------------------


async def driver(place: StepPlace, notes: Notes) -> None:
    """Every call of the port that only reads, timed."""
    seconds: dict[str, float] = {}
    async with opened(place.driver_root, place.run_dir) as hardware:

        async def timed(name: str, call: Callable[[], Awaitable[object]]) -> object:
            began = time.monotonic()
            try:
                return await call()
            finally:
                seconds[name] = round(time.monotonic() - began, 4)

        try:
            inventory = await timed("observe, the first", hardware.observe)
            notes.keep("inventory", inventory)
            for name, call in _CALLS.items():
                notes.keep(name, await timed(name, lambda call=call: call(hardware)))  # type: ignore[misc]
        except HardwareError as error:
            notes.contradicted("discovery", str(error))
        else:
            notes.seen(
                "discovery", f"{len(seconds)} calls answered, the slowest in {max(seconds.values()):.2f} s"
            )
        notes.keep("seconds", seconds)
        gpu = await found(hardware, place.gpu)
        gpus = len((await hardware.observe()).gpus)
    await _slices_list(place, notes)
    if gpu.persistence is not False:
        notes.not_here("cold-observe", "a GPU without persistence mode: it is on here")
    else:
        first, then = seconds["observe, the first"], seconds["observe"]
        notes.seen(
            "cold-observe", f"{first:.2f} s on {gpus} GPUs without persistence mode, then {then:.3f} s"
        )
    await _numa(place, gpu, notes)


_CALLS: dict[str, Callable[[Hardware], Awaitable[object]]] = {
    "observe": lambda hardware: hardware.observe(),
    "conditions": lambda hardware: hardware.conditions(),
    "events": lambda hardware: hardware.events(_EVENTS_S),
    "uses": lambda hardware: hardware.uses(),
    "processes": lambda hardware: hardware.processes(),
    "samples": lambda hardware: hardware.samples(),
}


async def _slices_list(place: StepPlace, notes: Notes) -> None:
    async with opened(place.driver_root, place.run_dir) as hardware:
        slices = {one.gpu: one for one in await hardware.time_slices()}
    now = slices.get(place.gpu)
    try:
        text = await smi(place, "compute-policy", "-i", place.gpu, "--list")
    except HardwareError as error:
        notes.not_here("slices-list", f"a GPU and driver with time slices that can be set: {error}")
        return
    notes.keep("nvidia-smi compute-policy --list", text)
    if now is not None and now.interval is not None:
        notes.seen("slices-list", f"read as {now.interval}: {text[:200]}")
    else:
        notes.contradicted("slices-list", now.reason if now is not None else "the GPU is not in the answer")


async def _numa(place: StepPlace, gpu: Gpu, notes: Notes) -> None:
    try:
        text = await smi(place, "topo", "-m")
    except HardwareError as error:
        notes.not_here("numa", f"an nvidia-smi that answers topo -m: {error}")
        return
    notes.keep("nvidia-smi topo -m", text)
    node = topology_node(text, gpu.index)
    ours = "N/A" if gpu.numa_node is None else str(gpu.numa_node)
    if node is None:
        notes.contradicted("numa", f"nvidia-smi topo -m has no line for GPU{gpu.index}: {text[:200]}")
    else:
        notes.judge("numa", node == ours, f"NVML: {ours}, nvidia-smi: {node}")


def topology_node(text: str, index: int) -> str | None:
    """The NUMA affinity of a GPU in the words of ``nvidia-smi topo -m``; None where its line is not found.

    Its first word names the GPU, as the header does; after it come the paths to all devices, the CPUs, the
    NUMA
    nodes, and in newer versions the GPU's own NUMA id.
    """
    header, name, after = text.partition("Affinity GPU NUMA ID ")
    own_id = bool(name)
    if not name:
        header, name, after = text.partition("NUMA Affinity ")
    if not name or not header:
        return None
    line = re.search(rf"(?:^| )GPU{index} (.*?)(?= GPU\d+ | NIC\d+ | Legend|$)", after)
    words = line[1].split() if line else []
    return words[-1 - own_id] if len(words) > own_id else None


# --- compare -----------------------------------------------------------------------------------


def _plain_fields(gpu: Gpu, version: str) -> dict[str, str | None]:
    """What Partage says, in nvidia-smi's words. None: the driver did not say."""
    on = {True: "Enabled", False: "Disabled"}
    mig = gpu.mig_mode
    return {
        "index": str(gpu.index),
        "uuid": gpu.uuid,
        "name": gpu.product,
        "pci.bus_id": gpu.pci_bus_id,
        "pci.device_id": gpu.pci_device_id,
        "pci.sub_device_id": gpu.pci_subsystem_id,
        "memory.total": str(gpu.memory_bytes // MIB),
        "compute_mode": "_".join(word.capitalize() for word in gpu.compute_mode.word.split("-")),
        "compute_cap": ".".join(map(str, gpu.compute_capability)),
        "persistence_mode": None if gpu.persistence is None else on[gpu.persistence],
        "mig.mode.current": None if mig is None else on[mig.current],
        "mig.mode.pending": None if mig is None else on[mig.pending],
        "serial": gpu.serial,
        "vbios_version": gpu.vbios_version,
        "driver_version": version,
    }


def _moving_fields(sample: GpuSample) -> dict[str, float | None]:
    """What changes from look to look."""
    memory, ratio = sample.memory, sample.utilisation
    clock, memory_clock = sample.sm_clock_hz, sample.memory_clock_hz
    return {
        "memory.used": None if memory is None else memory.used_bytes / MIB,
        "utilization.gpu": None if ratio is None else 100 * ratio,
        "temperature.gpu": sample.temperature_c,
        "power.draw": sample.power_w,
        "power.limit": sample.power_limit_w,
        "clocks.sm": None if clock is None else clock / 1e6,
        "clocks.mem": None if memory_clock is None else memory_clock / 1e6,
    }


def _agrees(field: str, ours: str | float | None, theirs: str | None) -> bool:
    """Whether they are the same, or as near as two looks can be."""
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if isinstance(ours, str):
        return ours.lower() == theirs.lower()
    try:
        value = float(theirs)
    except ValueError:
        return False
    if field == "memory.used":
        return abs(value - ours) * MIB <= _MEMORY_SLACK
    if field == "temperature.gpu":
        return abs(value - ours) <= _SLACK["temperature"]
    if field == "utilization.gpu":
        return 0 <= value <= 100 and 0 <= ours <= 100
    share = _SLACK.get(field.partition(".")[0], 0.0) if field != "power.limit" else 0.01
    return abs(value - ours) <= max(share * max(value, ours), 1.0)


async def compare(place: StepPlace, notes: Notes) -> None:
    """Field by field. A field that nvidia-smi does not know, and Partage neither, counts as the same."""
    async with opened(place.driver_root, place.run_dir) as hardware:
        inventory = await hardware.observe()
        gpu = await found(hardware, place.gpu)
        samples = await hardware.samples()
    sample = next((one for one in samples.gpus if one.gpu == place.gpu), None)
    version = getattr(inventory.driver, "version", "")
    fields: dict[str, str | float | None] = {**_plain_fields(gpu, version)}
    fields |= _moving_fields(sample) if sample is not None else {}
    try:
        await smi(place, "--query-gpu=uuid", "--format=csv,noheader,nounits", "-i", place.gpu)
    except HardwareError as error:
        notes.not_here("beside-smi", f"an nvidia-smi that answers: {error}")
        return
    table, differ = [], []
    for field, ours in fields.items():
        theirs = await smi_field(place, field)
        same = _agrees(field, ours, theirs)
        table.append({"field": field, "partage": ours, "nvidiaSmi": theirs, "same": same})
        if not same:
            differ.append(f"{field}: {ours} here, {theirs} by nvidia-smi")
        notes.keep("fields", table)
    words = f"{len(table) - len(differ)} of {len(table)} fields are the same"
    notes.judge("beside-smi", not differ, "; ".join([words, *differ]))


# --- record ------------------------------------------------------------------------------------


async def record(place: StepPlace, notes: Notes) -> None:
    """The node is written, and shown from what was written."""
    file = place.work / "node.yaml"
    wrote = await partage(place, "record", "--to", str(file), limit_s=60)
    if wrote.code:
        notes.contradicted("record", f"partage record: {wrote.words}")
        return
    notes.keep("machine", file.read_text(encoding="utf-8"))
    real = await partage(place, "show", "-o", "json", limit_s=60)
    again = await partage(place, "show", "--machine", str(file), "-o", "json", limit_s=60, root=False)
    if real.code or again.code:
        notes.contradicted("record", f"partage show: {(real if real.code else again).words}")
        return
    here, simulated = json.loads(real.out), json.loads(again.out)
    differ = [key for key in ("uuid", "product", "memoryBytes", "migMode", "computeMode", "pciBusId")
              if _all(here, key) != _all(simulated, key)]  # fmt: skip
    words = (
        f"differs in {', '.join(differ)}"
        if differ
        else f"{len(here.get('gpus', ()))} GPUs, shown alike from the file"
    )
    notes.keep("show", here)
    notes.judge("record", not differ, words)


def _all(document: object, key: str) -> list[object]:
    """The values of a key, of each GPU."""
    gpus = document.get("gpus", ()) if isinstance(document, dict) else ()
    return [gpu.get(key) for gpu in gpus]


# --- exporter ----------------------------------------------------------------------------------

_POLICY = "version: partage/v1\ngpus: [{select: rest, exclusive: {}}]\n"
_METRICS = {
    "partage_gpu_memory_total_bytes": ("memory.total", MIB, 0.0),
    "partage_gpu_memory_used_bytes": ("memory.used", MIB, _MEMORY_SLACK),
    "partage_gpu_temperature_celsius": ("temperature.gpu", 1, _SLACK["temperature"]),
    "partage_gpu_power_limit_watts": ("power.limit", 1, 1.0),
    "partage_gpu_memory_clock_hertz": ("clocks.mem", 1e6, 2e9),
}
"""Metric to nvidia-smi's field, its unit, and how far two looks may be apart."""


class _Agent:
    """A running agent without a kubelet, in directories of its own; it changes nothing."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, started_s: float) -> None:
        self.process, self.address, self.started_s = process, address, started_s

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=10) as answer:  # noqa: S310 - our own agent
            return str(answer.read().decode())


@asynccontextmanager
async def _agent(place: StepPlace) -> AsyncIterator[_Agent]:
    """Raises HardwareError where it does not serve in time."""
    work = place.work
    policy = work / "policy.yaml"
    policy.write_text(_POLICY, encoding="utf-8")
    for name in ("kubelet", "state", "run", "cdi"):
        (work / name).mkdir(exist_ok=True)
    began = time.monotonic()
    argv = [
        sys.executable, "-P", "-m", "partage", "agent", "--policy", policy, "--kubelet-dir", work / "kubelet",
        "--state-dir", work / "state", "--run-dir", place.run_dir, "--cdi-dir", work / "cdi", "--driver-root",
        place.driver_root, "--http", "127.0.0.1:0", "--cluster", "off", "--labels", "none", "--history", "0",
        "--validations", "off",
    ]  # fmt: skip
    with (work / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *map(str, argv), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_AGENT_S):
                address = (await process.stdout.readline()).decode().strip()
        except TimeoutError:
            address = ""
        if not address.startswith("http"):
            tail = (work / "agent.log").read_text(errors="replace")[-500:]
            raise HardwareError(f"the agent does not serve within {_AGENT_S:g} s: {tail}")
        yield _Agent(process, address, time.monotonic() - began)
    finally:
        await end_group(process)


def _own_loopback() -> str:
    """Leave the machine's network for one with a loopback alone: nobody else reaches the agent, and it works
    where there is no network at all. Only root may; without, the machine's own is used. Why not, in words.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.unshare(_CLONE_NEWNET):
        return os.strerror(ctypes.get_errno())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = b"lo".ljust(16, b"\0")
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, name + bytes(24)), 16)
        if not flags & _IFF_UP and os.geteuid() == 0:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, name + struct.pack("h", flags | _IFF_UP) + bytes(22))
        return "" if flags & _IFF_UP or os.geteuid() == 0 else "it is down"


async def exporter(place: StepPlace, notes: Notes) -> None:
    """The agent's metrics beside nvidia-smi, its memory and its helper's, how long it takes to start and
    stop.
    """
    if why := _own_loopback():
        for row in ("exporter", "footprint"):
            notes.not_here(row, f"a loopback interface: {why}")
        return
    async with _agent(place) as agent:
        text, waited = "", time.monotonic() + _AGENT_S
        while "partage_gpu_memory_total_bytes" not in text and time.monotonic() < waited:
            text = await asyncio.to_thread(agent.get, "/metrics")
            await asyncio.sleep(0.2)
        notes.keep("metrics", text)
        table, differ = [], []
        for metric, (field, unit, slack) in _METRICS.items():
            theirs, ours = await smi_field(place, field), metric_value(text, metric, place.gpu)
            same = (
                ours is None
                if theirs is None
                else ours is not None and abs(ours - float(theirs) * unit) <= slack
            )
            table.append(
                {"metric": metric, "partage": ours, "nvidiaSmi": theirs, "field": field, "same": same}
            )
            differ += [] if same else [f"{metric} {ours}, {field} {theirs}"]
        notes.keep("compared", table)
        known = sum(row["partage"] is not None for row in table)
        notes.judge(
            "exporter", bool(known) and not differ, "; ".join([f"{known} values are nvidia-smi's", *differ])
        )
        tree = {agent.process.pid, *_children(agent.process.pid)}
        pss = {f"{procfs.name_of(Path('/proc'), pid)} {pid}": _pss_bytes(pid) for pid in tree}
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await agent.process.wait()
        stopped_s = time.monotonic() - began
        total = sum(pss.values()) / MIB
        notes.keep("footprint", {"pssBytes": pss, "startSeconds": agent.started_s, "stopSeconds": stopped_s})
        notes.seen(
            "footprint",
            f"{total:.1f} MiB PSS, serves {agent.started_s:.2f} s after exec, stops in {stopped_s:.2f} s",
        )


def metric_value(text: str, metric: str, gpu: str) -> float | None:
    """The value of a metric of one GPU."""
    for line in text.splitlines():
        if line.startswith((f"{metric}{{", f"{metric} ")) and (gpu in line or "{" not in line):
            return float(line.rpartition(" ")[2])
    return None


def _children(pid: int) -> set[int]:
    proc = Path("/proc")
    return {child for child in procfs.pids(proc) if procfs.parent_of(proc, child) == pid}


def _pss_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


# --- geometry ----------------------------------------------------------------------------------


async def geometry(place: StepPlace, notes: Notes) -> None:
    """What the driver says of MIG, beside the catalogue."""
    hardware = NvmlHardware(place.driver_root, lacks_geometry=lambda _: True)
    try:
        gpu = await found(hardware, place.gpu)
    finally:
        await hardware.close()
    if gpu.mig_mode is None:
        notes.not_here("geometry", f"a GPU with MIG: {gpu.product} has none")
        return
    if gpu.geometry is None:
        root = "" if os.geteuid() == 0 else ", root"
        notes.not_here(
            "geometry", f"a driver that says it with MIG mode {_on(gpu.mig_enabled)} (550 or newer){root}"
        )
        return
    notes.keep("asked", gpu.geometry)
    known = catalogue.geometry_of(gpu)
    if known is None:
        notes.not_here(
            "geometry", f"a GPU of the catalogue: {gpu.product} is not in it; what its driver says is kept"
        )
        return
    asked = {str(spec.profile): (spec.size, spec.starts) for spec in gpu.geometry.profiles}
    ours = {str(spec.profile): (spec.size, spec.starts) for spec in known.profiles}
    differ = sorted(name for name in {*asked, *ours} if asked.get(name) != ours.get(name))
    words = f"{len(asked)} profiles with MIG mode {_on(gpu.mig_enabled)}" + (
        f"; other than here: {', '.join(differ)}" if differ else ""
    )
    notes.judge("geometry", not differ, words)


def _on(mode: bool) -> str:
    return "on" if mode else "off"
