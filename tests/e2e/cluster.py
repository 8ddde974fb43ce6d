"""A real cluster, asked with kubectl and helm as its users do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "partage"
NAMESPACE = "gpu-sharing"
MACHINE = "4xa100-40gb"
"""The same in all tests: a GPU that leaves the node and comes back is on probation at first."""

T = TypeVar("T")
Json = dict[str, Any]


class Cluster:
    """kubectl, helm and the API server; ``own``: started by these tests on this machine, at ``folder``."""

    def __init__(self, kubeconfig: Path, image: str, folder: Path | None) -> None:
        self.kubeconfig, self.image, self.folder = kubeconfig, image, folder

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
        waiting = ("--wait", "--timeout", "120s") if wait else ()
        self.run("helm", *command, "--reset-values", "-f", "-", *waiting, stdin=text)

    def uninstall(self) -> None:
        self.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait", check=False)

    def restart_kubelet(self) -> None:
        """Kill the kubelet of an own cluster and start it again, as its service manager would."""
        assert self.folder is not None
        subprocess.run([ROOT / "tests" / "cluster" / "restart-kubelet", self.folder], check=True, timeout=60)

    # --- what is there ----------------------------------------------------------------------------

    @property
    def node(self) -> str:
        name: str = self.get("nodes")["items"][0]["metadata"]["name"]
        return name

    def allocatable(self) -> dict[str, int]:
        """GPU resources of the node with their counts."""
        found = self.get("node", self.node)["status"]["allocatable"]
        return {name: int(count) for name, count in found.items() if "/" in name and name[:9] != "hugepages"}

    def component(self, name: str) -> Json:
        """The newest pod of ``agent`` or ``hardware`` that is not being deleted."""
        selector = f"app.kubernetes.io/component={name}"
        pods = self.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        newest: Json = max(living, key=lambda pod: pod["metadata"]["creationTimestamp"])
        return newest

    def agent_http(self, path: str) -> str:
        """What the agent answers over HTTP, through the API server."""
        pod = self.component("agent")["metadata"]["name"]
        return self.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/http:{pod}:9400/proxy/{path}"
        )

    def report(self) -> Json:
        found: Json = json.loads(self.agent_http("report.json"))
        return found

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

    def pod(self, name: str) -> Json:
        return self.get("pod", name)

    def environment(self, pod: str, container: str = "main") -> dict[str, str]:
        """The environment of the program in a container, as it sees it."""
        lines = self.kubectl("exec", pod, "-c", container, "--", "env").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, what: str, question: Callable[[], T], timeout_s: float = 60) -> T:
        """Ask until the answer is true, at most ``timeout_s``. Raises AssertionError with the last."""
        deadline = time.monotonic() + timeout_s
        answer: object = None
        while time.monotonic() < deadline:
            try:
                if found := question():
                    return found
                answer = found
            except AssertionError as error:
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

    def until_phase(self, pod: str, *phases: str, timeout_s: float = 60) -> Json:
        def reached() -> Json | None:
            found = self.pod(pod)
            assert found["status"]["phase"] in phases, f"{pod} is {found['status']}"
            return found

        return self.until(f"{pod} is {' or '.join(phases)}", reached, timeout_s) or {}


def pod(name: str, *limits: Mapping[str, int], command: Sequence[str] = (), **spec: Any) -> Json:
    """A pod of busybox whose containers (``main``, ``c1``, ...) ask for these resources."""
    containers = [
        {
            "name": "main" if number == 0 else f"c{number}",
            "image": "docker.io/library/busybox:local",
            "imagePullPolicy": "IfNotPresent",
            "command": list(command) or ["/pause"],
            "resources": {"limits": {key: str(value) for key, value in asked.items()}},
        }
        for number, asked in enumerate(limits)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"partage-e2e": "tenant"}},
        "spec": {"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        | spec,
    }
