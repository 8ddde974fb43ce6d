"""The change from NVIDIA's plugin to Partage and back, as it is seen and done on one node."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from partage.agent.options import Intervals, pod_resources_of
from partage.answers.documents.report import ReportDocument, Unreadable, read_report
from partage.codec.values import CodecError, decode, encode
from partage.edges.host.procfs import pid_namespace, runs
from partage.edges.host.read_file import read_regular
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.other_plugins import HANDBACK, OtherPlugin, at_socket
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.sockets import marked_sockets
from partage.errors import DaemonError, InputError, Unreachable, Unsatisfiable
from partage.kubernetes.decide.takeover import Exchange, Ids, ids_of, mps_resources
from partage.kubernetes.takeover_document import ExchangeStepRow
from partage.model.ids import ResourceName, plugin_socket_name
from partage.model.policy import Policy
from partage.model.share import CheckpointHolds, NodeOffer
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.device_plugins import PluginDaemonSet

RECORD = "nvidia-plugin.json"
"""In the state directory: what NVIDIA's plugin listed before the last takeover."""

LABEL = "nvidia.com/gpu.deploy.device-plugin"
_LIMIT_BYTES = 64 * 2**20
_LOOK_EVERY_S = 0.2
_PROC = Path("/proc")


class Record(Frozen):
    """What NVIDIA's plugin listed. label: the node's label before; None: it had none, or it is not known."""

    listed: Ids
    label: str | None = None


class AgentPlace(Frozen):
    """The directories of one node."""

    kubelet_dir: Path
    run_dir: Path
    state_dir: Path

    def kubelet(self) -> tuple[Ids, CheckpointHolds]:
        """Listed and held ids, as the kubelet's checkpoint has them. Raises Unreachable, also without a file:
        a kubelet that has a plugin writes one.
        """
        file = CheckpointFile(self.kubelet_dir)
        listed, held = file.listed(), file.held()
        if listed is None or held is None:
            raise Unreachable(f"the kubelet has no checkpoint in {self.kubelet_dir}", "see --kubelet-dir")
        return listed, held

    async def healthy(self) -> Ids:
        """The ids that the kubelet gives to pods now. Its checkpoint does not say so: it is as old as the
        last list or pod. Raises Unreachable.
        """
        client = PodResourcesClient(pod_resources_of(self.kubelet_dir))
        try:
            return await client.allocatable()
        finally:
            client.close()

    def kept(self) -> tuple[str, ...]:
        """Names of earlier sockets of Partage that the kubelet keeps until it starts again."""
        return tuple(path.name for path in marked_sockets(self.kubelet_dir))

    @contextmanager
    def asked_back(self) -> Iterator[None]:
        """Let the agent give way for the length of a block, so that its streams have ended before NVIDIA's
        plugin registers: a kubelet up to 1.36 that sees the end later stops the new plugin.

        Raises InputError.
        """
        path = self.kubelet_dir / HANDBACK
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                path.unlink(missing_ok=True)
                listening.bind(str(path))
            except OSError as error:
                raise InputError(f"{path} cannot be made: {error.strerror}", "name --kubelet-dir") from error
            try:
                listening.listen()
                yield
            finally:
                with suppress(OSError):
                    path.unlink()

    def report(self) -> ReportDocument:
        """The last report of the agent. Raises Unsatisfiable without one."""
        found = read_report(self.run_dir / "report.json")
        if found is None or isinstance(found, Unreadable):
            raise _no_agent(found.reason if found else f"there is no report in {self.run_dir}")
        agent = found.agent
        if agent.pid_namespace == pid_namespace(_PROC) and not runs(_PROC, agent.pid):
            raise _no_agent(f"the one that wrote {self.run_dir}/report.json (pid {agent.pid}) has ended")
        return found

    def other(self, resource: ResourceName) -> OtherPlugin | None:
        """Who listens at the socket of a resource; the agent does so itself where it has registered."""
        return at_socket(resource, self.kubelet_dir / plugin_socket_name(resource))

    def record(self) -> Record | None:
        """What NVIDIA's plugin listed before the last takeover. Raises InputError if it cannot be read."""
        path = self.state_dir / RECORD
        try:
            return decode(Record, read_regular(path, _LIMIT_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, CodecError) as error:
            raise InputError(f"{path} cannot be read: {error}", "name NVIDIA's file with --policy") from error

    def write_record(self, record: Record) -> None:
        """Raises InputError."""
        path = self.state_dir / RECORD
        beside = path.with_name(f"{path.name}.new")
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(encode(record))
            beside.replace(path)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}", "name --state-dir") from error


def _no_agent(reason: str) -> Unsatisfiable:
    return Unsatisfiable(
        f"no agent runs here: {reason}",
        "start partage agent first: beside NVIDIA's plugin it waits and registers nothing",
    )


def takeover_of(place: AgentPlace) -> Exchange:
    """The change to Partage, from what the agent would register now. Raises Unsatisfiable, Unreachable."""
    report = place.report()
    wanted = wanted_offer(report)
    listed, held = place.kubelet()
    mps = mps_resources(report.offer) | mps_resources(wanted)
    # Daemons are started when NVIDIA's have gone: until then, the agent offers nothing under MPS.
    later = {name: ids for name, ids in ids_of(wanted).items() if name in mps}
    return Exchange("Partage", listed, held, {**ids_of(report.offer), **later}, mps | nvidia_mps())


def handback_of(place: AgentPlace, offered: Ids) -> Exchange:
    """The change to NVIDIA's plugin, which will offer these ids. Raises Unsatisfiable, Unreachable."""
    offer = place.report().offer
    listed, held = place.kubelet()
    return Exchange("NVIDIA's plugin", listed, held, offered, mps_resources(offer))


def wanted_offer(report: ReportDocument, policy: Policy | None = None) -> NodeOffer:
    """What the agent's policy, or another one, offers on the agent's node once everything is done.

    Raises Unsatisfiable, InputError.
    """
    from partage.edges.files.catalogue import geometry_of
    from partage.model.gpu import NoDriver
    from partage.plan.offer.desired import resolve

    seen = report.planner_input
    inventory = seen.snapshot.observed.node.inventory if seen else None
    if seen is None or inventory is None or isinstance(inventory.driver, NoDriver):
        raise Unsatisfiable("the agent does not know the node's GPUs", "partage show says what is wrong")
    return resolve(policy or seen.policy, inventory, geometry_of, seen.snapshot.demands).offer


def nvidia_mps(root: Path = Path("/run/nvidia/mps")) -> frozenset[ResourceName]:
    """Resources for which NVIDIA's MPS control daemon runs on this node."""
    try:
        return frozenset(
            ResourceName(f"nvidia.com/{pipe.parent.name}")
            for pipe in (root / "nvidia.com").glob("*/pipe")
            if (pipe / "control").exists()
        )
    except OSError:
        return frozenset()


def registered(report: ReportDocument) -> frozenset[ResourceName]:
    """Resources for which the kubelet asks Partage now: it has accepted them, and reads their lists."""
    return frozenset(
        resource.name for resource in report.resources if resource.registered and resource.watching
    )


# --- steps -----------------------------------------------------------------------------------------


def takeover_steps(node: str, sets: tuple[PluginDaemonSet, ...] | None) -> list[ExchangeStepRow]:
    """What has to be done. sets: NVIDIA's DaemonSets; None: not known."""
    name = node or "NODE"
    steps = []
    for daemon_set in sets or ():
        if not daemon_set.by_label:
            space = daemon_set.namespace
            patch = encode(
                {
                    "spec": {
                        "template": {
                            "spec": {
                                "affinity": {
                                    "nodeAffinity": {
                                        "requiredDuringSchedulingIgnoredDuringExecution": {
                                            "nodeSelectorTerms": list(daemon_set.kept_off)
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            ).decode()
            steps.append(
                ExchangeStepRow(
                    f"let the DaemonSet {space}/{daemon_set.name} leave out nodes with {LABEL}=false; its "
                    "pods on other nodes are replaced one by one, once",
                    f"kubectl -n {space} patch daemonset {daemon_set.name} --type merge -p '{patch}'",
                    done=False,
                )
            )
    if sets is None:
        steps.append(
            ExchangeStepRow(
                f"without the GPU Operator only: let NVIDIA's DaemonSet leave out nodes with {LABEL}=false "
                "(a node affinity, operator NotIn)",
                "kubectl -n NAMESPACE edit daemonset NAME",
                done=False,
            )
        )
    steps.append(
        ExchangeStepRow(
            f"take NVIDIA's plugin from node {name}",
            f"kubectl label node {name} --overwrite {LABEL}=false",
            False,
        )
    )
    return [
        *steps,
        ExchangeStepRow("wait until its socket has gone and Partage has registered", "", done=False),
        ExchangeStepRow("check that the kubelet lists every held id", "", done=False),
    ]


def handback_steps(node: str, label: str | None) -> list[ExchangeStepRow]:
    """What has to be done. label: the value that the node gets back."""
    name = node or "NODE"
    value = f"--overwrite {LABEL}={label}" if label is not None else f"{LABEL}-"
    return [
        ExchangeStepRow(
            f"let NVIDIA's plugin run on node {name}", f"kubectl label node {name} {value}", done=False
        ),
        ExchangeStepRow(
            "wait until it has registered; Partage gives way while partage handback --wait runs, and when "
            "the other plugin comes",
            "",
            done=False,
        ),
        ExchangeStepRow("check that the kubelet lists every held id", "", done=False),
    ]


async def label_of(config: ClusterConfig, node: str) -> str | None:
    """The node's label; None: it has none. Raises ClusterError."""
    from partage.edges.kube.device_plugins import DevicePlugins

    return await DevicePlugins(config).label(node)


async def set_label(config: ClusterConfig, node: str, value: str | None) -> None:
    """Set the node's label, or remove it. Raises ClusterError."""
    from partage.edges.kube.device_plugins import DevicePlugins

    await DevicePlugins(config).set_label(node, value)


async def prepare(config: ClusterConfig) -> None:
    """Prepare DaemonSets that do not know the label. Raises ClusterError, Unsatisfiable."""
    from partage.edges.kube.device_plugins import DevicePlugins

    plugins = DevicePlugins(config)
    sets = await plugins.sets()
    if not sets:
        raise Unsatisfiable(
            "no DaemonSet of NVIDIA's device plugin is in this cluster",
            "its container is called nvidia-device-plugin or nvidia-device-plugin-ctr; end it by hand, and "
            "use --wait in place of --cluster",
        )
    for daemon_set in sets:
        if not daemon_set.by_label:
            await plugins.keep_off(daemon_set)


async def plugin_sets(config: ClusterConfig) -> tuple[PluginDaemonSet, ...]:
    """NVIDIA's DaemonSets. Raises ClusterError."""
    from partage.edges.kube.device_plugins import DevicePlugins

    return await DevicePlugins(config).sets()


# --- waiting ---------------------------------------------------------------------------------------


async def until_exchanged(place: AgentPlace, exchange: Exchange, limit_s: float) -> None:
    """Wait until the other plugin has all resources, and the kubelet lists every id that was held and
    healthy. Raises DaemonError if it takes longer, with what is still missing.
    """
    await _until(lambda: _missing(place, exchange), limit_s)


async def until_given_way(place: AgentPlace, exchange: Exchange, limit_s: float) -> None:
    """Wait until the kubelet asks Partage for none of the resources any more, and has applied the end of its
    lists: a kubelet that is slow still names their ids as healthy. Raises DaemonError.
    """

    async def still() -> str:
        try:
            left = registered(place.report()) & set(exchange.resources)
        except Unsatisfiable as error:
            return str(error)
        return f"the agent still serves {min(left)}" if left else ""

    await _until(still, limit_s)
    await asyncio.sleep(Intervals().withdraw_s)


async def _until(missing: Callable[[], Awaitable[str]], limit_s: float) -> None:
    said = "nothing was seen"
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        said = await missing()
        if not said:
            return
        await asyncio.sleep(_LOOK_EVERY_S)
    raise DaemonError(f"not done after {limit_s:g} s: {said}")


async def _missing(place: AgentPlace, exchange: Exchange) -> str:
    """What is still to come; empty: all is there.

    Partage has ended its streams, so what the kubelet gives afterwards is of the other plugin's list.
    """
    try:
        _, held = place.kubelet()
        ours, healthy = registered(place.report()), await place.healthy()
    except (Unreachable, Unsatisfiable) as error:
        return str(error)
    concerned = [name for name in exchange.resources if exchange.offered.get(name)]
    arrived: Callable[[ResourceName], bool]
    if exchange.to == "Partage":
        arrived = ours.__contains__
    else:

        def arrived(name: ResourceName) -> bool:
            return name not in ours and place.other(name) is not None and bool(healthy.get(name))

    for name in concerned:
        if not arrived(name):
            return f"{exchange.to} has not registered {name}"
        had = held.get(name, {}).keys() & exchange.listed.get(name, frozenset())
        lost = had - healthy.get(name, frozenset())
        if lost:
            return f"the kubelet does not list {len(lost)} held ids of {name} as healthy: {min(lost)}, ..."
    return ""
