"""A real cluster, asked with kubectl and helm as its users do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.registration import KUBELET_SOCKET, register
from partage.errors import Rejected, Unreachable
from partage.model.ids import ResourceName

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "partage"
NAMESPACE = "gpu-sharing"
POLICY_LABEL = "nvidia.com/device-plugin.config"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WHOLE = "version: partage/v1\n"
"""The policy of four exclusive GPUs."""
TWICE = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 2}\n"
"""The policy of eight shares."""
MACHINE = "4xa100-40gb"
"""The same in all tests: a GPU that leaves the node and comes back is on probation at first."""

T = TypeVar("T")
Json = dict[str, Any]


class Given(NamedTuple):
    """What a container that runs was told: the UID of its pod, ids, UUIDs of GPUs, and their strategy."""

    pod: str
    shares: set[str]
    gpus: set[str]
    strategy: str


class Cluster:
    """kubectl, helm and the API server, and one node; ``own``: both are started by these tests on this
    machine, the node at ``folder``.
    """

    def __init__(self, kubeconfig: Path, image: str, folder: Path | None, node: str = "") -> None:
        self.kubeconfig, self.image, self.folder, self._node = kubeconfig, image, folder, node

    @property
    def own(self) -> bool:
        return self.folder is not None

    # --- programs ---------------------------------------------------------------------------------

    def run(self, *command: str, stdin: str | None = None, check: bool = True) -> str:
        """A program's standard output. Raises AssertionError with what it printed if it fails."""
        environment = {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            ["env", *(f"{key}={value}" for key, value in environment.items()), *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, check=check)

    def get(self, *arguments: str) -> Json:
        found: Json = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    @staticmethod
    def json(value: object) -> str:
        """A patch, as kubectl takes it."""
        return json.dumps(value)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(one) for one in objects]))

    def install(self, *, wait: bool = True, **values: Any) -> None:
        """Install the chart, or upgrade it, with these values and none of an earlier call."""
        base = {"image": {"repository": self.image.rpartition(":")[0], "tag": self.image.rpartition(":")[2]}}
        text = yaml.safe_dump(base | {"affinity": None} | values)
        command = ("upgrade", "--install", "partage", str(CHART), "-n", NAMESPACE, "--create-namespace")
        waiting = ("--wait", "--timeout", "60s") if wait else ()
        try:
            self.run("helm", *command, "--reset-values", "-f", "-", *waiting, stdin=text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.states()}") from None

    @contextmanager
    def with_chart(self, **values: Any) -> Iterator[None]:
        """Install the chart, and uninstall it whatever happens: else the next module finds this node."""
        try:
            self.install(**values)
            yield
        finally:
            self.uninstall()

    def states(self) -> str:
        """How the chart's pods are, and the last lines of their logs."""
        said = [self.kubectl("describe", "pods", "-n", NAMESPACE, check=False)]
        for name in ("agent", "hardware"):
            selector = f"app.kubernetes.io/component={name}"
            said += [name, self.kubectl("logs", "-n", NAMESPACE, "-l", selector, "--tail=12", check=False)]
        return "\n".join(said)

    def uninstall(self) -> None:
        """Remove the chart, and on an own cluster what the agent knew: the next one finds a new node."""
        self.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait", check=False)
        if self.own:
            self.until("its pods are gone", lambda: not self.get("pods", "-n", NAMESPACE)["items"])
            self.empty("/var/lib/partage")
            self.empty("/run/partage")

    def empty(self, path: str) -> None:
        """Remove what is in a folder of the own cluster's node; the folder itself may be a mount."""
        for one in self.path_on_node(path).iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()

    # --- an own cluster ---------------------------------------------------------------------------

    def restart_kubelet(self) -> None:
        """Kill the kubelet of an own cluster and start it again, as its service manager would."""
        assert self.folder is not None
        subprocess.run([ROOT / "tests" / "cluster" / "restart-kubelet", self.folder], check=True, timeout=60)

    def stop_api_server(self) -> None:
        """Kill the API server of an own cluster; ``start_api_server`` brings it back."""
        os.kill(self.pid_of("apiserver"), signal.SIGKILL)

    def start_api_server(self) -> None:
        """Start the API server of an own cluster; one that runs is killed first."""
        assert self.folder is not None
        script = ROOT / "tests" / "cluster" / "restart-apiserver"
        subprocess.run([script, self.folder], check=True, timeout=120)

    def pid_of(self, program: str) -> int:
        """A program that ``tests/cluster/up`` has started."""
        assert self.folder is not None
        lines = (self.folder / "pids").read_text().splitlines()
        return next(int(pid) for name, pid in (line.split() for line in lines) if name == program)

    def on_node(self, *command: str) -> str:
        """Run a program in the mount namespace of the own cluster's node."""
        return self.run("nsenter", f"--mount=/proc/{self.pid_of('node')}/ns/mnt", *command)

    @contextmanager
    def device_files(self, numbers: Mapping[str, tuple[int, int]]) -> Iterator[None]:
        """Device files on the own cluster's node, by path: in place of those that other modules have left
        there, and NVIDIA's libraries, which make /dev/nvidiactl as root.
        """
        self.on_node("rm", "-f", *numbers)
        self.on_node("mkdir", "-p", *{path.rpartition("/")[0] for path in numbers})
        try:
            for path, (major, minor) in numbers.items():
                self.on_node("mknod", "-m", "666", path, "c", str(major), str(minor))
            yield
        finally:
            self.on_node("rm", "-f", *numbers)

    def path_on_node(self, path: str) -> Path:
        """A file or folder of the own cluster's node, as it is seen from here."""
        assert self.folder is not None
        return self.folder / "node" / path.lstrip("/")

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Ask the own cluster's containerd."""
        return self.run(
            "ctr", "-a", f"{self.folder}/containerd.sock", "-n", "k8s.io", *arguments, check=check
        )

    def load(self, archive: Path) -> None:
        """Give the own cluster's node the images of an archive."""
        self.ctr("images", "import", str(archive))

    def kill_container(self, pod: Json, container: str) -> None:
        """Kill -9 a container of an own cluster; the kubelet starts it again."""
        statuses = pod["status"]["containerStatuses"]
        found = next(one["containerID"] for one in statuses if one["name"] == container)
        self.ctr("tasks", "kill", "-s", "SIGKILL", found.removeprefix("containerd://"))

    def pids_of(self, pod: Json) -> list[int]:
        """Processes of a pod's containers on an own cluster, as this machine numbers them."""
        rows = (line.split() for line in self.ctr("tasks", "list").splitlines()[1:])
        pids = {row[0]: int(row[1]) for row in rows}
        statuses = pod["status"]["containerStatuses"]
        return [pids[one["containerID"].removeprefix("containerd://")] for one in statuses]

    def given(self) -> list[Given]:
        """What the containers on an own cluster's node were given that still run, as their environment says.

        Neither kubelet, API server nor agent is asked.
        """
        rows = (line.split() for line in self.ctr("tasks", "list").splitlines()[1:])
        found = []
        for pid in (Path("/proc", row[1]) for row in rows if row[2] != "STOPPED"):
            try:
                environ = pid.joinpath("environ").read_text(errors="replace").split("\0")
                pod = re.search(r"/pod([0-9a-f_-]+)", pid.joinpath("cgroup").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue
            told = dict(line.split("=", 1) for line in environ if "=" in line)
            if "PARTAGE_SHARES" in told and pod:
                shares, gpus = (told[name].split(",") for name in ("PARTAGE_SHARES", "PARTAGE_GPUS"))
                strategy = f"{told['PARTAGE_STRATEGY']} x {told['PARTAGE_REPLICAS']}"
                found.append(Given(pod[1], set(shares), set(gpus), strategy))
        return found

    def until_given(self, count: int, timeout_s: float = 60) -> None:
        """Wait until containers of so many pods run that were given shares."""
        self.until(
            f"{count} pods have shares", lambda: len({row.pod for row in self.given()}) == count, timeout_s
        )

    def nothing_is_given_twice(self) -> list[Given]:
        """Raises AssertionError if two pods have one share, or shares of two strategies are on one GPU."""
        rows = self.given()
        for name, pairs in {
            "two pods have one share": [(share, row.pod) for row in rows for share in row.shares],
            "a GPU has two strategies": [(gpu, row.strategy) for row in rows for gpu in row.gpus],
        }.items():
            seen: dict[str, str] = {}
            for key, value in pairs:
                assert seen.setdefault(key, value) == value, f"{name}: {key}: {rows}"
        return rows

    def stop_node(self) -> None:
        """Kill the kubelet of an own cluster and every container on its node, as a reboot does.

        What is in ``/run/partage`` is gone, too. ``restart_kubelet`` starts the node again.
        """
        os.kill(self.pid_of("kubelet"), signal.SIGKILL)
        for container in self.ctr("tasks", "list", "-q").split():
            self.ctr("tasks", "kill", "-s", "SIGKILL", container, check=False)
        self.empty("/run/partage")

    def kubelet_holds(self) -> dict[str, set[str]]:
        """Pod to the ids of GPU shares that the own cluster's kubelet says it has (PodResources)."""
        holds: dict[str, set[str]] = {}
        for one in self._ask_kubelet(PodResourcesClient.held):
            if one.ids:
                holds.setdefault(one.pod, set()).update(one.ids)
        return holds

    def kubelet_offers(self) -> dict[str, int]:
        """Resource to how many healthy shares the own cluster's kubelet has of it (PodResources).

        A kubelet that has just started has none until the plugin has registered with it and sent its list.
        """
        found = self._ask_kubelet(PodResourcesClient.allocatable)
        return {str(name): len(ids) for name, ids in found.items() if ids}

    def _ask_kubelet(self, question: Callable[[PodResourcesClient], Awaitable[T]]) -> T:
        """Raises AssertionError if no kubelet answers."""
        socket = self.path_on_node("/var/lib/kubelet/pod-resources/kubelet.sock")

        async def ask() -> T:
            client = PodResourcesClient(socket)
            try:
                return await question(client)
            except Unreachable as error:
                raise AssertionError(f"the kubelet does not answer: {error}") from error
            finally:
                client.close()

        return asyncio.run(ask())

    def add_static_pod(self, manifest: Mapping[str, Any]) -> None:
        """A pod that the own cluster's kubelet has from a file and not from the API server.

        There its name is followed by that of the node.
        """
        assert self.folder is not None
        folder = self.folder / "manifests"
        beside = folder / f".{manifest['metadata']['name']}"  # the kubelet passes over names with a dot
        beside.write_text(yaml.safe_dump(dict(manifest)))
        beside.replace(folder / f"{manifest['metadata']['name']}.yaml")

    def static_pods(self) -> list[str]:
        """Names of those that have a file."""
        assert self.folder is not None
        return [one.stem for one in (self.folder / "manifests").glob("*.yaml")]

    def remove_static_pod(self, name: str) -> None:
        """Remove its file; the kubelet ends the pod."""
        assert self.folder is not None
        (self.folder / "manifests" / f"{name}.yaml").unlink()

    def register_again(self, resource: str) -> None:
        """A second Register for each socket of the own cluster's node that serves this resource already.

        A kubelet of 1.37 or newer refuses it. The agent then registers at a fresh socket, which is waited
        for: between the two the kubelet has nothing to give. An older one takes it.
        """
        folder = self.path_on_node("/var/lib/kubelet/device-plugins")
        what = ResourceName(resource)
        options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        offered = self.until("the kubelet has a list", lambda: self.kubelet_offers().get(resource))
        before = set(folder.glob("nvidia-gpu*.sock"))
        refused = False
        for socket in before:

            def answered() -> bool:
                nonlocal refused
                if not socket.exists():  # noqa: B023 - the agent has left it meanwhile, for a fresh one
                    return True
                call = register(folder / KUBELET_SOCKET, endpoint=socket.name, resource=what, options=options)  # noqa: B023
                try:
                    asyncio.run(call)
                except Rejected:
                    refused = True
                except Unreachable as error:
                    raise AssertionError(f"the kubelet has just started: {error}") from error
                return True

            self.until("the kubelet answers a second Register", answered)
        if refused:
            self.until("the agent has a fresh socket", lambda: set(folder.glob("nvidia-gpu*.sock")) - before)
        self.until("the kubelet has its list again", lambda: self.kubelet_offers().get(resource) == offered)

    # --- what is there ----------------------------------------------------------------------------

    @cached_property
    def node(self) -> str:
        """The name of the node: the first one, if none was given. Asked once: others come and go."""
        name: str = self._node or self.get("nodes")["items"][0]["metadata"]["name"]
        return name

    def allocatable(self) -> dict[str, int]:
        """GPU resources of the node with their counts."""
        found = self.get("node", self.node)["status"]["allocatable"]
        return {name: int(count) for name, count in found.items() if "/" in name and name[:9] != "hugepages"}

    def component(self, name: str) -> Json:
        """The newest pod of ``agent`` or ``hardware`` on the node that is not being deleted.

        Raises AssertionError if there is none: an upgrade removes the old one before it makes the new.
        """
        selector = (
            "-l",
            f"app.kubernetes.io/component={name}",
            f"--field-selector=spec.nodeName={self.node}",
        )
        pods = self.get("pods", "-n", NAMESPACE, *selector)["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        assert living, f"no pod of {name} on the node now"
        newest: Json = max(living, key=lambda pod: pod["metadata"]["creationTimestamp"])
        return newest

    def agent_http(self, path: str) -> str:
        """What the agent answers over HTTP, through the API server."""
        pod = self.component("agent")["metadata"]["name"]
        return self.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/http:{pod}:9400/proxy/{path}"
        )

    def unready(self) -> str:
        """What the agent answers to the readiness probe while it is not ready; empty if it is.

        The API server passes on no other answer than a good one.
        """
        try:
            self.agent_http("healthz")
        except AssertionError:
            pod = self.component("agent")["metadata"]["name"]
            ask = (
                "import urllib.error, urllib.request\n"
                "try: urllib.request.urlopen('http://localhost:9400/healthz')\n"
                "except urllib.error.HTTPError as error: print(error.read().decode())"
            )
            return self.kubectl("exec", "-n", NAMESPACE, pod, "--", "python", "-c", ask)
        return ""

    def report(self) -> Json:
        found: Json = json.loads(self.agent_http("report.json"))
        return found

    def ledger(self) -> dict[str, set[str]]:
        """Pod to the ids that the agent's ledger has for it."""
        held: dict[str, set[str]] = {}
        for row in self.report()["held"]:
            for holder in row["holders"]:
                held.setdefault(holder["pod"], set()).add(row["id"])
        return held

    def condition(self, kind: str) -> Json:
        """A condition of the node; empty if there is none."""
        conditions: list[Json] = self.get("node", self.node)["status"]["conditions"]
        return next((one for one in conditions if one["type"] == kind), {})

    def pending_plan(self) -> Json:
        """The annotation that says which changes are pending; empty if there is none."""
        annotations = self.get("node", self.node)["metadata"].get("annotations", {})
        found: Json = json.loads(annotations.get("partage.dev/plan", "{}"))
        return found

    def agent_may(self, verb: str, resource: str) -> bool:
        """Whether the agent's account may do this in every namespace. resource: ``pods/eviction``."""
        kind, _, below = resource.partition("/")
        who = f"system:serviceaccount:{NAMESPACE}:partage-agent"
        part = (f"--subresource={below}",) if below else ()
        answer = self.kubectl("auth", "can-i", verb, kind, *part, "--as", who, "-A", check=False)
        word = answer.split()[-1]
        assert word in ("yes", "no"), answer
        return word == "yes"

    def choose(self, policy: str | None) -> None:
        """Set the node's label that chooses its policy; None takes it away."""
        asked = f"{POLICY_LABEL}-" if policy is None else f"{POLICY_LABEL}={policy}"
        self.kubectl("label", "node", self.node, "--overwrite", asked)

    def gpus_in(self, phase: str) -> list[Json]:
        """What the report says of the GPUs in this phase."""
        return [one for one in self.report()["gpus"] if one["phase"] == phase]

    def remove_tenants(self) -> None:
        """Every pod that a test has made, and the controllers that would make them anew."""
        kinds = "deployments,statefulsets,daemonsets,jobs,poddisruptionbudgets"
        self.kubectl("delete", kinds, "-l", "partage-e2e=tenant", "--cascade=background", "--wait")
        self.kubectl(
            "delete", "pods", "-l", "partage-e2e=tenant", "--grace-period=0", "--force", "--wait", check=False
        )

    def events(self, reason: str, about: str) -> list[str]:
        """Messages of the events about a pod or the node."""
        found = self.get("events", "-A", "--field-selector", f"reason={reason},involvedObject.name={about}")
        return [one.get("message") or one.get("note", "") for one in found["items"]]

    def why(self) -> str:
        """What the agent says of its GPUs and its policy."""
        try:
            report = self.report()
        except AssertionError:
            return "the agent does not answer"
        gpus = [
            f"GPU {one['index']} {one['phase']} {one['reason'] or ''} {one['health']['state']}"
            for one in report["gpus"]
        ]
        return "; ".join([f"policy {report['policy']['state']}", *gpus])

    def phases(self) -> dict[str, str]:
        """Pod to phase, of all tenants."""
        pods = self.get("pods", "-l", "partage-e2e=tenant")["items"]
        return {one["metadata"]["name"]: one["status"]["phase"] for one in pods}

    def pod(self, name: str) -> Json:
        return self.get("pod", name)

    def environment(self, pod: str, container: str = "main") -> dict[str, str]:
        """The environment of the program in a container, as it sees it."""
        lines = self.kubectl("exec", pod, "-c", container, "--", "env").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, what: str, question: Callable[[], T], timeout_s: float = 60) -> T:
        """Ask until the answer is true, at most ``timeout_s``. Raises AssertionError with the last.

        What is not there yet (a key, an item of a list) is no answer, too.
        """
        deadline = time.monotonic() + timeout_s
        answer: object = None
        while time.monotonic() < deadline:
            try:
                if found := question():
                    return found
                answer = found
            except (AssertionError, LookupError, ValueError) as error:
                answer = error
            time.sleep(0.3)
        raise AssertionError(f"not within {timeout_s:g} s: {what}; the last answer was {answer}")

    def until_allocatable(self, expected: Mapping[str, int], timeout_s: float = 60) -> None:
        """Wait until the node offers exactly these GPU resources; one with no share may be left over."""

        def offered() -> dict[str, int]:
            return {name: count for name, count in self.allocatable().items() if count}

        def right() -> bool:
            found = offered()
            assert found == dict(expected), f"{found}, because {self.why()}"
            return True

        self.until(f"the node offers {dict(expected)}", right, timeout_s)

    def until_allocatable_count(self, resource: str, count: int, timeout_s: float = 60) -> None:
        """Wait until the node offers so many of one resource."""
        self.until(f"{count} {resource}", lambda: self.allocatable().get(resource) == count, timeout_s)

    def until_running(
        self, app: str, least: int, timeout_s: float = 120, *, since: Collection[str] = ()
    ) -> dict[str, str]:
        """Running pods of a Deployment with the id of their container, once there are that many.

        since: ids of containers that count no more: after a reboot the API server has their state until the
        kubelet tells it the new one.
        """

        def enough() -> dict[str, str]:
            pods = self.get("pods", "-l", f"app={app}")["items"]
            found = {
                one["metadata"]["name"]: state["containerID"]
                for one in pods
                if "deletionTimestamp" not in one["metadata"]
                for state in one["status"].get("containerStatuses", [])
                if "running" in state["state"] and state["containerID"] not in since
            }
            assert len(found) >= least, {one["metadata"]["name"]: one["status"]["phase"] for one in pods}
            return found

        return self.until(f"{least} pods of {app} run", enough, timeout_s) or {}

    def until_ledger(self, expected: Mapping[str, set[str]]) -> None:
        """Wait until the agent's ledger says this (pod to ids), and the kubelet says the same."""

        def right() -> bool:
            assert self.ledger() == dict(expected)
            assert not self.own or self.kubelet_holds() == dict(expected)
            return True

        self.until("the ledger is what the pods have", right)

    def shares(self, *pods: str) -> dict[str, set[str]]:
        """Pod to the ids of its shares, as its first container was told; no id may be there twice."""
        found = {name: set(self.environment(name)["PARTAGE_SHARES"].split(",")) for name in pods}
        assert len(set().union(*found.values())) == sum(map(len, found.values())), found
        return found

    def until_phase(self, pod: str, *phases: str, timeout_s: float = 60) -> Json:
        def reached() -> Json | None:
            found = self.pod(pod)
            assert found["status"]["phase"] in phases, f"{pod} is {found['status']}"
            return found

        return self.until(f"{pod} is {' or '.join(phases)}", reached, timeout_s) or {}
