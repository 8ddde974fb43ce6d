"""What helm itself does with the chart's values: which it refuses, and that others are rendered.

Needs helm, which ``make chart`` builds and runs these tests with.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "partage"
HELM = shutil.which("helm", path=f"{ROOT / 'build' / 'cluster'}") or shutil.which("helm")

pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm: make chart")


DRA = "--kube-version=1.37.2 --set=dra.enabled=true --set=cdi.enabled=true"


def _template(*options: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, "template", "partage", str(CHART), "--namespace=partage", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--namespace=default", "not installed into the namespace"),
        ("--set=cluster.drian=true", "additional properties 'drian' not allowed"),
        ("--set=config.name=a --set=config.map.b=c", "exclude each other"),
        ("--set=config.default=a", "config.default names a policy, and there is none"),
        ("--set=config.default=a --set=config.map.b=c", "is not in config.map, which has b"),
        ("--set=cluster.enabled=false --set=cluster.drain=true", "cluster.drain needs cluster.enabled"),
        ("--set=cluster.drainNamespaces={a}", "cluster.drainNamespaces needs cluster.drain"),
        (
            "--set=cluster.podAnnotations=true --set=admission.ownNodeOnly=false",
            "cluster.podAnnotations needs admission.ownNodeOnly",
        ),
        ("--set=agent.updateStrategy.rollingUpdate.maxSurge=1", "maxSurge has to be 0: one agent serves"),
        ("--set=agent.updateStrategy.rollingUpdate.maxSurge=10%", "maxSurge has to be 0: one agent serves"),
        ("--set=rollout.canary.pool=test", "rollout.canary needs rollout.maxChanging"),
        ("--kube-version=1.29.4-gke.1", "admission.ownNodeOnly needs Kubernetes 1.30"),
        (
            "--kube-version=1.29 --set=cluster.enabled=false --set=admission.denyVisibleDevices.enabled=true",
            "admission.denyVisibleDevices needs Kubernetes 1.30",
        ),
        (
            "--kube-version=1.29 --set=cluster.enabled=false --set=admission.restrictedMps.enabled=true",
            "admission.restrictedMps needs Kubernetes 1.30",
        ),
        (
            f"{DRA} --set=dra.driverName=gpu.nvidia.com --set=dra.extendedResources.a\\.b/c=gpu.partage.dev",
            "gpu.nvidia.com has no class gpu.partage.dev; it has gpu.nvidia.com, mig.nvidia.com",
        ),
        (
            f"{DRA} --set=dra.extendedResources.a\\.b/c=gpu.nvidia.com",
            "gpu.partage.dev has no class gpu.nvidia.com",
        ),
        (f"{DRA} --set=cluster.enabled=false", "dra.enabled needs cluster.enabled"),
        ("--kube-version=1.37.2 --set=dra.enabled=true", "dra.enabled needs cdi.enabled"),
        (f"{DRA} --kube-version=1.35.9", "dra.enabled needs Kubernetes 1.36.4, and this is v1.35.9"),
        ("--set=dra.extendedResources.a\\.b/c=gpu.partage.dev", "dra.extendedResources needs dra.enabled"),
        (
            f"{DRA} --set=dra.extendedResources.a\\.b/c=gpu.partage.dev"
            " --set=dra.extendedResources.a\\.b/d=gpu.partage.dev",
            "one class is named twice",
        ),
        ("--kube-version=1.26", "kubeVersion: >=1.27"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_installed(options: str, said: str) -> None:
    done = _template(*options.split())
    assert done.returncode
    assert said in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        "--kube-version=1.27 --set=admission.ownNodeOnly=false",
        "--set=affinity=null",
        "--set=cluster.podAnnotations=true",
        "--set=rollout.maxChanging=1 --set=rollout.canary.pool=true",
        f"{DRA} --set=dra.extendedResources.nvidia\\.com/gpu=gpu.partage.dev",
        f"{DRA} --set=dra.driverName=gpu.nvidia.com"
        " --set=dra.extendedResources.nvidia\\.com/gpu=gpu.nvidia.com",
        f"{DRA} --kube-version=1.36.4-gke.1",
        f"--values={CHART / 'presets' / 'gpu-operator.yaml'}",
    ],
)
def test_what_works_is_rendered(options: str) -> None:
    done = _template(*options.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: DaemonSet") == 2
