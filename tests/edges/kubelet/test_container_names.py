"""Names of containers, read from the kubelet's log directory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.kubelet.container_names import container_names
from partage.plan.serve.ledger_entry import Holder

CID, OTHER = "3f" * 32, "a0" * 32


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path


def test_pod_namespace_and_container_stand_in_the_name(logs: Path) -> None:
    (logs / f"train-0.v1_team-a_main-loop-{CID}.log").symlink_to("/var/log/pods/gone")
    (logs / f"kube-proxy-x_kube-system_kube-proxy-{OTHER}.log").touch()
    assert container_names(logs) == {
        CID: Holder("team-a", "train-0.v1", "main-loop"),
        OTHER: Holder("kube-system", "kube-proxy-x", "kube-proxy"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "syslog",
        f"{CID}.log",
        f"pod_ns_c-{CID}",
        f"pod_ns_c-{CID[1:]}.log",  # cut off at 255 bytes
        f"pod_ns_c-{CID.upper()}.log",
        f"_ns_c-{CID}.log",
        f"pod_ns_-{CID}.log",
        f"a_b_c_d-{CID}.log",
    ],
)
def test_other_file_names_are_ignored(logs: Path, name: str) -> None:
    (logs / name).touch()
    assert container_names(logs) == {}


def test_an_id_under_two_names_is_under_none(logs: Path) -> None:
    for pod in ("a", "b", "c"):
        (logs / f"{pod}_ns_main-{CID}.log").touch()
    assert container_names(logs) == {}


def test_a_node_without_the_directory_has_no_names(logs: Path) -> None:
    assert container_names(logs / "absent") == {}
    (logs / "file").touch()
    assert container_names(logs / "file") == {}


label = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
subdomain = st.lists(label, min_size=1, max_size=3).map(".".join)


@given(subdomain, label, label, st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
def test_every_name_that_kubernetes_allows_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, pod: str, namespace: str, container: str, identity: str
) -> None:
    logs = tmp_path_factory.mktemp("logs")
    (logs / f"{pod}_{namespace}_{container}-{identity}.log").touch()
    assert container_names(logs) == {identity: Holder(namespace, pod, container)}
