"""How verbs reach a cluster, and what they say where there is no way."""

from pathlib import Path

import pytest

from partage.answers.cluster_options import cluster_of
from partage.errors import InputError

KUBECONFIG = """\
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "https://10.0.0.1"}}]
"""


@pytest.fixture(autouse=True)
def _outside_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_kubeconfig_it_is_said_how_to_name_one(tmp_path: Path):
    with pytest.raises(
        InputError, match=f"there is no kubeconfig '{tmp_path}/.kube/config'.*--kubeconfig FILE"
    ):
        cluster_of(None)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(KUBECONFIG)
    assert cluster_of(None).url == "https://10.0.0.1"


def test_several_files_in_the_variable_are_not_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/b")
    with pytest.raises(InputError, match=r"names several files.*--kubeconfig FILE"):
        cluster_of(None)
