"""The agent, a simulated node and a kubelet, joined by real sockets in a temporary folder; with the processes
of a story's pods, which come when a pod runs, on what it holds, and go when it ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from partage.agent import kubelet_service
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.errors import InputError, Unreachable
from partage.lab.stories.expectations import NodeSnapshot
from partage.lab.stories.model import ChangePolicy, PolicyText, Story, Work
from partage.lab.stories.rest import at_rest
from partage.model.ids import ContainerId, DeviceUuid, PodUid, device_of
from partage.model.node_labels import NodeLabels
from partage.model.pod import Pod
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pods import ContainerStatus, PodPhase, PodStatus
from partage.sim.node.faults import Occupy, Vacate
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.observation import inventory_of

_FIRST_PID = 10_000
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
"""A container with this variable is a client of MPS."""


class PodWork:
    """directory: where the kubelet links the logs of containers, by which the agent knows their names."""

    def __init__(self, hardware: SimulatedHardware, directory: Path) -> None:
        self._hardware = hardware
        self._directory = directory
        self._wanted: dict[str, Work] = {}
        self._busy: dict[str, set[int]] = {}
        self._pids = itertools.count(_FIRST_PID)

    def want(self, key: str, work: Work) -> None:
        """That pod works so from when it runs."""
        self._wanted[key] = work

    async def update(self, pods: Iterable[PodStatus]) -> None:
        """Begin the work of pods that run, end that of pods that do not any more."""
        running = {pod.pod.key: pod for pod in pods if pod.phase is PodPhase.RUNNING}
        for key in self._busy.keys() - running.keys():
            for gpu in self._busy.pop(key):
                await self._hardware.inject(Vacate(gpu, _name(key)))
        for key in self._wanted.keys() & running.keys() - self._busy.keys():
            self._busy[key] = set()
            for container in running[key].containers:
                for occupy in self._processes(key, running[key].uid, container):
                    await self._hardware.inject(occupy)
                    self._busy[key].add(occupy.gpu)

    def _processes(self, key: str, uid: PodUid, container: ContainerStatus) -> Iterator[Occupy]:
        """One process for each device that the container holds."""
        devices = dict.fromkeys(device_of(share) for ids in container.ids.values() for share in ids)
        identity = ContainerId(hashlib.sha256(f"{key}/{container.name}".encode()).hexdigest())
        namespace, _, pod = key.partition("/")
        if devices:
            self._directory.mkdir(exist_ok=True)
            (self._directory / f"{pod}_{namespace}_{container.name}-{identity}.log").touch()
        work = self._wanted[key]
        for device in devices:
            for index, gi, ci in self._places(device):
                yield Occupy(
                    index,
                    _name(key),
                    gi=gi,
                    ci=ci,
                    pid=next(self._pids),
                    memory_bytes=work.memory_bytes,
                    container=identity,
                    pod=uid,
                    mps=_MPS in container.env,
                    load=work.load,
                )

    def _places(self, device: DeviceUuid) -> Iterator[tuple[int, int | None, int | None]]:
        for index, gpu in self._hardware.state.gpus.items():
            if gpu.uuid == device:
                yield index, None, None
            yield from ((index, mig.gi_id, mig.ci_id) for mig in gpu.mig_devices if mig.uuid == device)


def _name(key: str) -> str:
    """Of the processes of a pod: no other pod has it."""
    return key


INTERVALS = Intervals(
    observe_s=1.0, conditions_s=0.1, policy_s=0.05, holders_first_s=0.05, holders_s=0.2, holders_waited_s=0.2,
    withdraw_s=0.2, turn_gap_s=0.02,
)  # fmt: skip
"""A story is played in seconds: the agent looks more often than on a real node, and does the same."""

WAIT_LIMIT_S = 10.0
REST_LIMIT_S = 5.0
"""How long a step waits for the agent to come to rest. Some never do: the driver's calls hang."""
_GLANCE_S = 0.02
"""How often the stage checks the condition it waits for, and whether a waiting pod finds room."""

_OTHER_NAME = "end it first, or give this one another name"

_NO_POLICY = PolicyText("", b"version: partage/v1\n")
"""The policy of a story that begins without one and has one later: every GPU exclusive."""


class StoryClock:
    """Seconds that never go back, and may jump ahead. ahead_s: by how much they have."""

    def __init__(self) -> None:
        self.ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s

    def jump(self, seconds: float) -> None:
        """Go ahead by so many seconds."""
        self.ahead_s += seconds


class StoryStage:
    """Agent, node and kubelet of one story.

    waiting: pods that found no room, oldest first. scheduled: called when one of them is admitted.
    """

    def __init__(self, story: Story, folder: Path, seed: int, scheduled: Callable[[PodStatus], None]) -> None:
        self.story = story
        self.folder = folder
        self.seed = seed
        self.scheduled = scheduled
        self.clock: StoryClock = StoryClock()
        self.waiting: dict[str, PodStatus] = {}
        self._queue: dict[str, asyncio.Task[PodStatus]] = {}
        self._stop: asyncio.Event = asyncio.Event()
        self._agent: asyncio.Task[None] | None = None
        kubelet_dir, pod_resources = self.folder / "device-plugins", self.folder / "pod-resources"
        for directory in (kubelet_dir, pod_resources):
            directory.mkdir()
        changes = any(isinstance(step, ChangePolicy) for step in self.story.steps)
        needs_file = self.story.policy is not None or changes
        self.settings = AgentOptions(
            kubelet_dir=kubelet_dir,
            pod_resources=pod_resources / "kubelet.sock",
            state_dir=self.folder / "state",
            run_dir=self.folder / "run",
            policy=self._policy_path() if needs_file else None,
            config=self.story.config,
            container_logs=self.folder / "containers",
            intervals=INTERVALS,
        )
        self.hardware = SimulatedHardware(self.story.machine, clock=self.clock)
        self.kubelet = EmbeddedKubelet(
            kubelet_dir, self.settings.pod_resources, seed=self.seed, clock=self.clock
        )
        self.work: PodWork = PodWork(self.hardware, self.settings.container_logs)
        self.agent_status = AgentStatus(self.clock)
        self._labels: dict[str, str] = dict(self.story.labels or {})
        self._know_labels: Callable[[NodeLabels], None] = lambda _: None
        self._swaps: int = 0

    def _policy_path(self) -> Path:
        """A file, or a directory as the kubelet mounts a ConfigMap."""
        directory = self.story.policy is not None and self.story.policy.files is not None
        return self.folder / ("policies" if directory else "policy.yaml")

    async def open(self) -> None:
        """Start the kubelet, then the agent; done when everything is registered."""
        if self.settings.policy is not None:
            self.write_policy(self.story.policy or _NO_POLICY)
        await self.kubelet.start()
        await self.start_agent()

    async def close(self) -> None:
        """Stop both."""
        try:
            await self.stop_agent()
        finally:
            for task in self._queue.values():
                task.cancel()
            await asyncio.gather(*self._queue.values(), return_exceptions=True)
            await self.kubelet.stop()
            await self.hardware.close()

    # --- the agent ---

    async def start_agent(self) -> None:
        """Raises what keeps the agent from starting, and Unreachable if the kubelet does not take it."""
        self.agent_status, self._stop = AgentStatus(self.clock), asyncio.Event()
        running = kubelet_service.run(
            self.settings,
            self.hardware,
            stop=self._stop,
            status=self.agent_status,
            labels=None if self.story.labels is None else self._tell_labels,
        )
        self._agent = asyncio.create_task(running, name="agent")
        if not await self.eventually(self.settled):
            missing = [state for state in self.agent_status.endpoints() if not state.registered]
            reasons = "; ".join(f"{state.resource}: {state.last_error or 'no answer'}" for state in missing)
            raise Unreachable("the agent has not registered everything in time", reasons)

    async def stop_agent(self) -> None:
        """Let it stop cleanly. Raises what it ended with, if it did."""
        agent, self._agent = self._agent, None
        self._stop.set()
        if agent is not None:
            await agent

    def write_policy(self, policy: PolicyText) -> None:
        """Replace the policy file as an operator's editor does: at once; a directory as the kubelet does."""
        assert self.settings.policy is not None
        if policy.files is not None:
            self._write_directory(self.settings.policy, policy.files)
            return
        beside = self.settings.policy.with_suffix(".new")
        beside.write_bytes(policy.content)
        beside.replace(self.settings.policy)

    def _write_directory(self, directory: Path, files: Mapping[str, bytes]) -> None:
        """Names are symlinks into ``..data``, which is swapped."""
        self._swaps += 1
        content = directory / f"..{self._swaps}"
        content.mkdir(parents=True)
        for name, text in files.items():
            (content / name).write_bytes(text)
        beside = directory / "..data_tmp"
        beside.symlink_to(content.name)
        beside.replace(directory / "..data")
        there = {link.name for link in directory.iterdir() if not link.name.startswith("..")}
        for name in files.keys() - there:
            (directory / name).symlink_to(f"..data/{name}")
        for name in there - files.keys():
            (directory / name).unlink()

    # --- labels ---

    def set_labels(self, changes: Mapping[str, str | None]) -> None:
        """Change labels of the Node. None: remove."""
        for key, value in changes.items():
            self._labels.pop(key, None)
            if value is not None:
                self._labels[key] = value
        self._know_labels(dict(self._labels))

    async def _tell_labels(self, know: Callable[[NodeLabels], None]) -> None:
        self._know_labels = know
        know(dict(self._labels))
        await asyncio.Event().wait()

    # --- what can be waited for ---

    async def eventually(self, condition: Callable[[], bool], within_s: float = WAIT_LIMIT_S) -> bool:
        """Whether the condition comes true in time. An agent that ends meanwhile raises its error here."""
        until_s = time.monotonic() + within_s
        while not condition():
            if self._agent is not None and self._agent.done():
                await self._agent
                return False
            if time.monotonic() > until_s:
                return False
            await self.schedule()
            await asyncio.sleep(_GLANCE_S)
        return True

    def settled(self) -> bool:
        """Everything that the agent lists has arrived at the kubelet."""
        report, capacity = self.agent_status.report, self.kubelet.capacity()
        if report is None or not all(state.registered for state in self.agent_status.endpoints()):
            return False
        return all(capacity.get(row.name, 0) == row.listed for row in report.resources)

    def at_rest(self) -> bool:
        """The agent knows the node as it is, the kubelet its answer; nothing more happens by itself."""
        report = self.agent_status.report
        if report is None or not self.settled():
            return False
        if self._queue.keys() != {pod.key for pod in self.kubelet.waiting()}:
            return False  # one of them has found room
        inventory = inventory_of(self.hardware.state)
        return at_rest(report, inventory, self.kubelet.pods(), self.kubelet.allocatable())

    async def rest(self, within_s: float = REST_LIMIT_S) -> None:
        """Wait for that, and for the pods that find room then; not for ever."""
        if await self.eventually(self.at_rest, within_s) and await self.schedule():
            await self.rest(within_s)

    async def noticed(self) -> None:
        """Wait until the agent has asked after the node once more, and made a turn of the answer."""
        asked = self.hardware.calls["conditions"]
        await self.eventually(lambda: self.hardware.calls["conditions"] > asked, REST_LIMIT_S)
        turns = self.agent_status.counts.turns  # one of them may have begun before
        await self.eventually(lambda: self.agent_status.counts.turns > turns + 1, REST_LIMIT_S)

    def snapshot(self) -> NodeSnapshot:
        """The node now."""
        return NodeSnapshot(
            capacity=self.kubelet.capacity(),
            allocatable=self.kubelet.allocatable(),
            pods=(*self.kubelet.pods(), *self.waiting.values()),
            report=self.agent_status.report,
        )

    # --- pods ---

    async def admit(self, pod: Pod, *, may_wait: bool) -> PodStatus:
        """Bring a pod to the node. may_wait: where it finds no room, it gets it in the moment in which there
        is some.

        Raises InputError where a pod of that name is there or waits.
        """
        if pod.key in self.waiting:
            raise InputError(f"pod {pod.key} waits already", _OTHER_NAME)
        try:
            status = await self.kubelet.admit(pod)
        except ValueError as error:
            raise InputError(str(error), _OTHER_NAME) from error
        if may_wait and _found_no_room(status):
            self.waiting[pod.key] = status
            self._queue[pod.key] = asyncio.create_task(self.kubelet.admit(pod, waits=True))
        await self.work.update(self.kubelet.pods())
        return status

    async def give_up(self, key: str) -> None:
        """A pod that waits is deleted."""
        pod, task = self.waiting.pop(key).pod, self._queue.pop(key)
        await self.kubelet.delete(pod)
        await task

    async def schedule(self) -> bool:
        """Notice the pods that have found room. Whether there is one."""
        found = [(key, task) for key, task in self._queue.items() if task.done()]
        for key, task in found:
            del self._queue[key], self.waiting[key]
            await self.work.update(self.kubelet.pods())
            self.scheduled(task.result())
        return bool(found)


def _found_no_room(status: PodStatus) -> bool:
    return status.phase is PodPhase.PENDING and not status.containers
