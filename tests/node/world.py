"""A node in one loop: simulated GPUs, an embedded kubelet on real sockets, the agent; and what befalls them.

What is true is what the kubelet did (``Held``) and how the simulated GPUs are; ``tests.node.truth`` holds the
agent against it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

from msgspec.structs import replace

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus
from partage.answers.report import ReportFile
from partage.edges.host.waiting import until_tick
from partage.edges.kubelet.checkpoint import CHECKPOINT
from partage.errors import InputError, Unsatisfiable
from partage.model.pod import Pod
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pods import ContainerState, ContainerStatus, PodPhase, PodStatus
from partage.sim.node.faults import (
    Call,
    DriverLoaded,
    Fault,
    GpuReturns,
    HealCall,
    Reboot,
    ResetGpu,
    SetCondition,
)
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from tests.agent.harness import Place
from tests.node.loops import Loop
from tests.node.sharing import Share, Sharing, Terms, device_part, policy_text

LONG_S = 60.0
"""Longer than any single thing takes that has to end by itself."""


@dataclass(frozen=True, slots=True)
class Held:
    """One share in one container, by the kubelet's own books.

    named: PodResources names the container. over: the container has ended, its pod has not.
    """

    pod: str
    container: str
    share: Share
    gpu: str
    terms: Terms
    named: bool
    over: bool


@dataclass(slots=True)
class Agent:
    """One life of the agent. since_s: its beginning."""

    task: asyncio.Task[None]
    stop: asyncio.Event
    status: AgentStatus
    since_s: float


@dataclass(slots=True)
class World:
    """One node.

    may_refuse: the policy has been wrong since the agent started; it may end over that before its first turn.
    troubles: faults that last until they are healed. quiet_since_s: nothing happened since. unrecorded:
    pods, and the shares that they held when the agent's state was lost. reports: the agent writes its report.
    options: more of the agent's.
    """

    place: Place
    loop: Loop
    hardware: SimulatedHardware
    kubelet: EmbeddedKubelet
    plan: tuple[Sharing, ...] = ()
    single: bool = True
    policy_is_good: bool = True
    may_refuse: bool = False
    agent: Agent | None = None
    kubelet_runs: bool = False
    troubles: set[str] = field(default_factory=set)
    quiet_since_s: float = 0.0
    admissions: dict[str, asyncio.Task[PodStatus]] = field(default_factory=dict)
    queue: dict[str, asyncio.Task[PodStatus]] = field(default_factory=dict)
    gpu_of: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    unrecorded: set[tuple[str, Share]] = field(default_factory=set)
    reports: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    _number: int = 0

    @classmethod
    def of(cls, place: Place, loop: Loop, machine: Machine, behaviour: Behaviour, seed: int) -> Self:
        """Everything is there, nothing runs."""
        hardware = SimulatedHardware(machine, clock=loop.time)
        kubelet = EmbeddedKubelet(
            place.kubelet_dir, place.pod_resources, seed=seed, behaviour=behaviour, clock=loop.time
        )
        return cls(place, loop, hardware, kubelet)

    def note(self, what: str) -> None:
        """Something happens now."""
        self.quiet_since_s = self.loop.time()
        self.log.append(f"{self.quiet_since_s - 1000:10.3f} {what}")

    async def passes(self, seconds: float) -> None:
        """Time passes; the kubelet starts meanwhile what it could not start before."""
        if seconds:
            self.log.append(f"{'':10} {seconds} s pass")
            await asyncio.sleep(seconds)
        if self.kubelet_runs and seconds > 1:
            await self.retry()

    # --- the policy ---

    def write_policy(self, plan: Sequence[Sharing], *, single: bool = True) -> None:
        self.note(f"policy {[one.name for one in plan]} single={single}")
        self.plan, self.single, self.policy_is_good = tuple(plan), single, True
        self._write(policy_text(plan, single=single))

    def write_wrong_policy(self, text: str) -> None:
        self.note(f"wrong policy {text!r}")
        self.policy_is_good, self.may_refuse = False, True
        self._write(text)

    def _write(self, text: str) -> None:
        """With a time of its own that is long ago: real time stands still here."""
        self._number += 1
        beside = self.place.root / "policy.new"
        beside.write_text(text, encoding="utf-8")
        os.utime(beside, (1_600_000_000 + self._number,) * 2)
        beside.replace(self.place.policy)

    # --- the agent ---

    def start_agent(self) -> None:
        assert self.agent is None
        self.note("agent starts")
        self.may_refuse = not self.policy_is_good
        settings = AgentOptions(
            kubelet_dir=self.place.kubelet_dir,
            pod_resources=self.place.pod_resources,
            state_dir=self.place.state_dir,
            run_dir=self.place.run_dir,
            cdi_dir=self.place.root / "cdi",
            container_logs=self.place.container_logs,
            policy=self.place.policy,
            **self.options,
        )
        stop, status = asyncio.Event(), AgentStatus(self.loop.time)
        beside = partial(self._report, settings) if self.reports else None
        task = self.loop.create_task(run(settings, self.hardware, stop=stop, status=status, beside=beside))
        self.agent = Agent(task, stop, status, self.loop.time())

    async def _report(self, settings: AgentOptions, status: AgentStatus) -> None:
        """Writes the report file, as the command does beside the agent."""
        file = ReportFile(status, settings.intervals, settings.report_file)
        while True:
            await until_tick(settings.intervals.report_s)
            assert not file.renew()

    async def stop_agent(self) -> None:
        """It is asked to stop, and stops."""
        assert self.agent is not None
        self.note("agent stops")
        self.agent.stop.set()
        await asyncio.wait([self.agent.task], timeout=LONG_S)
        assert self.agent.task.done(), "the agent does not stop"
        self.notice_agent()
        self.agent = None

    async def kill_agent(self) -> None:
        """It is gone between two steps: its sockets lie there, what it had not yet written is lost."""
        assert self.agent is not None
        self.note("agent killed")
        kept = [(path, path.with_name(f"{path.name}.kept")) for path in self._plugin_sockets()]
        for path, beside in kept:
            os.link(path, beside)
        self.agent.task.cancel()
        await asyncio.wait([self.agent.task], timeout=LONG_S)
        assert self.agent.task.done(), "the agent does not end"
        for path, beside in kept:
            path.unlink(missing_ok=True)  # where it was not this agent's: a name of the same file stays
            beside.replace(path)
        self.agent = None

    def _plugin_sockets(self) -> list[Path]:
        found = self.place.kubelet_dir.iterdir()
        return [path for path in found if path.is_socket() and path.name != "kubelet.sock"]

    def notice_agent(self) -> None:
        """An agent may end by itself only for a policy that is wrong. Raises what else ended it."""
        if self.agent is None or not self.agent.task.done():
            return
        agent, self.agent = self.agent, None
        try:
            agent.task.result()
        except (InputError, Unsatisfiable):
            if not self.may_refuse or agent.status.report is not None:
                raise

    async def agent_turns(self) -> None:
        """Have an agent that has begun, whatever became of the last one."""
        for _ in range(3):
            if self.agent is None:
                self.start_agent()
            async with asyncio.timeout(LONG_S):
                while self.agent is not None and self.agent.status.report is None:
                    await asyncio.sleep(0.1)
                    self.notice_agent()
        assert self.agent is not None, "the agent does not start"

    def lose_state(self) -> None:
        assert self.agent is None
        self.note("state lost")
        self.unrecorded |= {(one.pod, one.share) for one in self.held()}
        shutil.rmtree(self.place.state_dir, ignore_errors=True)

    def lose_checkpoint(self) -> None:
        """Somebody removes the kubelet's file; the kubelet knows what is in it, and writes it with its next
        list."""
        self.note("checkpoint lost")
        (self.place.kubelet_dir / CHECKPOINT).unlink()

    # --- the kubelet ---

    async def start_kubelet(self) -> None:
        self.note("kubelet starts")
        await self.kubelet.start()
        self.kubelet_runs = True

    async def stop_kubelet(self) -> None:
        self.note("kubelet stops")
        self.kubelet_runs = False
        await self.kubelet.stop()

    def behave(self, **changed: object) -> None:
        """The kubelet behaves otherwise from now on."""
        self.note(f"kubelet behaves {changed}")
        self.kubelet.behaviour = replace(self.kubelet.behaviour, **changed)
        behaviour = self.kubelet.behaviour
        self._trouble("pod resources refuse", behaviour.pod_resources is not PodResourcesMode.SERVES)
        self._trouble("kubelet does not answer", not behaviour.answers_registration)
        self._trouble("kubelet does not know its pods", not behaviour.knows_pods)

    def _trouble(self, word: str, there: bool) -> None:
        (self.troubles.add if there else self.troubles.discard)(word)

    # --- pods ---

    async def admit(self, pod: Pod, *, bound: bool, patience_s: float) -> None:
        """A pod comes; nobody waits longer for it than told."""
        self.note(f"admit {pod.key} {pod.totals} {[(c.kind, c.requests) for c in pod.containers]}")
        task = self.loop.create_task(self._admit(pod, bound=bound))
        self.admissions[pod.key] = task
        await asyncio.wait([task], timeout=patience_s)

    async def _admit(self, pod: Pod, *, bound: bool) -> PodStatus:
        """A pod that comes while there is no kubelet waits for ever; nobody misses it here."""
        return (
            await self.kubelet.admit(pod, bound=bound)
            if self.kubelet_runs
            else PodStatus(pod, PodPhase.PENDING)
        )

    def notice_admissions(self) -> None:
        """Raises AssertionError where the kubelet gave a device twice."""
        for tasks in (self.admissions, self.queue):
            for key, task in [(key, task) for key, task in tasks.items() if task.done()]:
                del tasks[key]
                status = task.result()
                self.log.append(f"{'':10} -> {key} {status.phase} {status.reason} {status.message}")

    def wait(self, pod: Pod) -> None:
        """A pod comes that waits until it has what it asks for."""
        self.note(f"wait {pod.key} {pod.totals}")
        self.queue[pod.key] = self.loop.create_task(self.kubelet.admit(pod, waits=True))

    def under_way(self) -> set[str]:
        """Pods that are being admitted: those that wait no more among them."""
        waiting = {pod.key for pod in self.kubelet.waiting()}
        bound = {key for key, task in self.queue.items() if key not in waiting and not task.done()}
        return self.admissions.keys() | bound

    async def admitted(self) -> None:
        """Wait until no admission is under way."""
        tasks = {**self.admissions, **self.queue}
        if under_way := [tasks[key] for key in self.under_way()]:
            await asyncio.wait(under_way, timeout=LONG_S)
        self.notice_admissions()
        assert not self.under_way(), "an admission does not end"

    async def queue_leaves(self) -> None:
        """Somebody deletes the pods that wait."""
        self.note("the queue is deleted")
        for pod in self.kubelet.waiting():
            await self.kubelet.delete(pod)
        await asyncio.sleep(0)
        await self.admitted()

    def live(self) -> list[PodStatus]:
        """Pods that hold what they were given."""
        return [status for status in self.kubelet.pods() if status.holds]

    async def end(self, pod: Pod, *, failed: bool = False) -> None:
        self.note(f"end {pod.key}")
        await self.kubelet.end(pod, failed=failed)

    async def delete_by_force(self, pod: Pod) -> PodStatus:
        """The API server forgets it at once, and the kubelet, too; its processes run on."""
        self.note(f"delete {pod.key} by force")
        (status,) = (one for one in self.live() if one.pod == pod)
        await self.kubelet.delete(pod, force=True)
        return status

    async def restart_container(self, pod: Pod, name: str) -> None:
        self.note(f"restart {pod.key} {name}")
        await self.kubelet.restart_container(pod, name)

    async def retry(self) -> None:
        """The kubelet tries once more to start what could not be started."""
        for status in self.live():
            if status.waiting and status.pod.key not in self.under_way():
                await self.kubelet.retry(status.pod)

    async def forget_ended(self) -> None:
        """Somebody deletes the pods that ended."""
        self.note("ended pods deleted")
        for status in self.kubelet.pods():
            if not status.holds and status.pod.key not in self.under_way():
                await self.kubelet.delete(status.pod)

    # --- the hardware ---

    async def fault(self, fault: Fault) -> None:
        self.note(str(fault))
        await self.hardware.inject(fault)
        self.troubles.add("hardware")

    async def heal(self) -> None:
        """All faults of the hardware stop: somebody resets what has to be reset."""
        faults: list[Fault] = [HealCall(call) for call in get_args(Call)]
        faults += [DriverLoaded()]
        for index in self.hardware.state.gpus:
            well = SetCondition(index, rows_failed=False, rows_pending=False)
            faults += [GpuReturns(index), well, *([ResetGpu(index)] if not self._has_mig(index) else [])]
        for fault in faults:
            await self.fault(fault)
        self.troubles.discard("hardware")

    def _has_mig(self, index: int) -> bool:
        return bool(self.hardware.state.gpus[index].mig_devices)

    def is_used(self, index: int) -> bool:
        """Whether somebody has, or may be getting, a share of that GPU: then nobody can reset it."""
        uuid = self.hardware.state.gpus[index].uuid
        return bool(self.under_way()) or any(one.gpu == uuid for one in self.held())

    async def reboot(self) -> None:
        """Everything ends; GPUs are reset. The kubelet and the agent start again when they are started."""
        self.note("reboot")
        if self.agent is not None:
            await self.kill_agent()
        await self.admitted()
        if self.kubelet_runs:
            await self.stop_kubelet()
        for status in self.live():
            await self.kubelet.end(status.pod, failed=True)
        shutil.rmtree(self.place.run_dir, ignore_errors=True)
        await self.hardware.inject(Reboot())

    async def close(self) -> None:
        """Leave nothing behind, whatever went wrong."""
        tasks = [*self.admissions.values(), *self.queue.values(), *([self.agent.task] if self.agent else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.kubelet.stop()

    # --- what is true ---

    def held(self) -> list[Held]:
        """Every share that a container of a live pod has."""
        self._learn_devices()
        return [
            held
            for status in self.live()
            for one in status.containers
            for held in self._held(status.pod, one)
        ]

    def left(self) -> list[tuple[str, Share]]:
        """Pod UID and share of those whose processes run on, though their pod was deleted by force."""
        return [
            (status.uid, (resource, share))
            for status in self.kubelet.left()
            for one in status.containers
            if one.state is ContainerState.RUNNING
            for resource, ids in one.ids.items()
            for share in ids
        ]

    def _held(self, pod: Pod, one: ContainerStatus) -> Iterable[Held]:
        named = any(container.name == one.name for container in pod.lasting)
        over = one.state is ContainerState.TERMINATED
        for resource, ids in one.ids.items():
            for share in ids:
                gpu = self.gpu_of[device_part(share)]
                yield Held(pod.key, one.name, (resource, share), gpu, _terms(one, resource, gpu), named, over)

    def _learn_devices(self) -> None:
        for gpu in self.hardware.state.gpus.values():
            self.gpu_of[gpu.uuid] = gpu.uuid
            self.gpu_of |= {mig.uuid: gpu.uuid for mig in gpu.mig_devices}

    def wanted(self) -> dict[str, dict[Share, Terms]]:
        """What the last good policy gives, GPU by GPU."""
        gpus = self.hardware.state.gpus
        return {gpus[n].uuid: sharing.shares(gpus[n]) for n, sharing in enumerate(self.plan)}

    def offered(self) -> dict[Share, bool]:
        """What the kubelet knows, and whether it is healthy."""
        self._learn_devices()
        return {
            (resource, share): healthy
            for resource, devices in self.kubelet.devices().items()
            for share, healthy in devices.items()
        }

    def is_unknown(self, one: Held) -> bool:
        """Its MIG device is gone (with a driver that was loaded anew), and so is the state that named it. The
        agent may know it all the same, if it fitted the policy when the agent started."""
        gpus = self.hardware.state.gpus.values()
        there = {gpu.uuid for gpu in gpus} | {mig.uuid for gpu in gpus for mig in gpu.mig_devices}
        return self._is_unrecorded(one) and device_part(one.share[1]) not in there

    def has_unknown_terms(self, one: Held) -> bool:
        """The state that said what it was given as is gone, and its id does not say it. The kubelet's last
        list may have said it to the agent."""
        return self._is_unrecorded(one) and device_part(one.share[1]) != one.share[1]

    def _is_unrecorded(self, one: Held) -> bool:
        return (one.pod, one.share) in self.unrecorded

    def gpu(self, share: Share) -> str:
        return self.gpu_of[device_part(share[1])]


def _terms(one: ContainerStatus, resource: str, gpu: str) -> Terms:
    """What the container was told of its shares on that GPU."""
    replicas = one.env["PARTAGE_REPLICAS"].split(",")
    at = one.env["PARTAGE_GPUS"].split(",").index(gpu)
    assert one.env["PARTAGE_RESOURCE"] == resource
    return resource, one.env["PARTAGE_STRATEGY"], int(replicas[at if len(replicas) > 1 else 0])
