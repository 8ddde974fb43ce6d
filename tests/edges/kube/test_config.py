"""Where the API server is: the account of a pod, kubeconfigs, and what is wrong with them."""

import base64
from pathlib import Path

import pytest

from partage.edges.kube.config import Material, cluster_config, from_kubeconfig, in_cluster
from partage.errors import InputError
from tests.edges.kube.scripted import PKI

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_a_pod_has_its_account(tmp_path: Path):
    for name, text in {"token": "t", "namespace": "gpus\n", "ca.crt": (PKI / "ca.crt").read_text()}.items():
        (tmp_path / name).write_text(text)
    found = in_cluster(INSIDE, tmp_path)
    assert (found.url, found.namespace) == ("https://10.0.0.1:6443", "gpus")
    assert found.token is not None
    assert found.token.read() == b"t"
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).url == "https://[fd00::1]:443"


def test_a_pod_without_an_account_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="automountServiceAccountToken"):
        in_cluster(INSIDE, tmp_path)


def test_where_there_is_no_cluster():
    assert cluster_config("off", INSIDE) is None
    assert cluster_config("auto", {}) is None


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
preferences: {}
contexts:
- {name: lab, context: {cluster: c, user: u, namespace: gpus}}
- {name: half, context: {cluster: none, user: u}}
clusters:
- name: c
  cluster: {server: "https://127.0.0.1:6443/", certificate-authority: ca.crt, tls-server-name: api}
users:
- name: u
  user: %s
"""


def _written(tmp_path: Path, user: str) -> Path:
    (tmp_path / "ca.crt").write_text("x")
    path = tmp_path / "config"
    path.write_text(KUBECONFIG % user)
    return path


def test_a_kubeconfig_with_a_token(tmp_path: Path):
    found = cluster_config(str(_written(tmp_path, "{token: abc}")), {})
    assert found is not None
    assert (found.url, found.namespace, found.server_name) == ("https://127.0.0.1:6443", "gpus", "api")
    assert found.ca == Material(tmp_path / "ca.crt")
    assert found.token == Material(data=b"abc")


def test_a_kubeconfig_with_a_certificate_in_it(tmp_path: Path):
    data = base64.b64encode(b"pem").decode()
    user = f"{{client-certificate-data: {data}, client-key: keys/u.key, tokenFile: t}}"
    found = from_kubeconfig(_written(tmp_path, user))
    assert found.certificate == Material(data=b"pem")
    assert found.key == Material(tmp_path / "keys/u.key")
    assert found.token == Material(tmp_path / "t")


@pytest.mark.parametrize(
    ("user", "context", "text"),
    [
        ("{exec: {command: aws}}", "", r"a program \(exec\) is not supported .*kubectl create token"),
        ("{auth-provider: {name: gcp}}", "", "a plugin is not supported"),
        ("{username: me, password: x}", "", "a password is not supported"),
        ("{token: abc}", "other", "there is no context 'other'.*lab, half"),
        ("{token: abc}", "half", "has no cluster 'none'"),
        ("{token: [1]}", "", "is not a kubeconfig"),
        ("{client-key-data: '!'}", "", "is not base64"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path: Path, user, context, text):
    with pytest.raises(InputError, match=text):
        from_kubeconfig(_written(tmp_path, user), context)


def test_a_kubeconfig_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        from_kubeconfig(tmp_path / "none")


def test_an_empty_kubeconfig_is_not_taken_for_a_policy(tmp_path: Path):
    (tmp_path / "config").write_text("\n")
    with pytest.raises(InputError) as error:
        from_kubeconfig(tmp_path / "config")
    (problem,) = error.value.problems
    assert (problem.message, problem.hint) == ("is an empty file", "")


def test_the_version_of_a_file_changes_with_it(tmp_path: Path):
    file = tmp_path / "ca.crt"
    file.write_text("one")
    before = Material(file).version()
    beside = tmp_path / "new"
    beside.write_text("two")
    beside.replace(file)
    assert Material(file).version() != before
    assert Material(data=b"x").version() is None
