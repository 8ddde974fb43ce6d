"""Nothing that is secret stays in what leaves the node."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.doctor.decide.redact import REMOVED, redact_text, redact_value

SECRETS = st.text(string.ascii_letters + string.digits, min_size=12, max_size=40).map("Qz7".__add__)

TEMPLATES = [
    "token: {}",
    "  password: {} and more words",
    "- api-key: {}",
    "db_password={}",
    '"clientSecret": "{}"',
    "'private_key': '{}'",
    "AccountingStoragePass={}",
    "StoragePass = {}",
    "Authorization: Bearer {}",
    "curl -H 'Authorization: Basic {}' https://x",
    "--http-token {} --policy p.yaml",
    "--auth-token={}",
    "https://alice:{}@registry.example.com/v2",
    "HTTP_PROXY={}",
    "client-key-data: {}",
    "certificate-authority-data: {}",
    "tokens: |\n  {}\n  second line {}\nnext: 1",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\n{}",
    "eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJl{}.c2ln{}",
    "AWS_SECRET_ACCESS_KEY={} other",
    'identitytoken = "{}"',
    "user: {}",
    "/home/{}/models",
    "jwt_key={}",
    "{{a: 1, password: {}}}",
    '{{"log":"{{\\"password\\": \\"a\\\\\\"{}\\"}}"}}',
    "tokens:\n- {}\n- {}\nnext: 1",
    "- name: FOO\n  value: {}",
    "env: [{{name: FOO, value: {}}}]",
    "curl -u bob:{} https://x",
    "https://store/c?sv=1&sig={}",
    "https://s3/x?X-Amz-Signature={}",
    "postgres://user:p@{}/more@host/db",
    "using password {} for x",
    "encryptionKey: {}",
    "license-key: {}",
    "pwd: {}",
    "session_id={}; path=/",
]


@pytest.mark.parametrize("template", TEMPLATES)
@settings(deadline=None)
@given(secret=SECRETS)
def test_no_part_of_a_secret_stays(template: str, secret: str) -> None:
    said = redact_text(f"before\n{template.format(*[secret] * 2)}\nafter\n")
    assert secret not in said
    assert REMOVED in said
    assert said.startswith("before\n")


@settings(deadline=None)
@given(st.sampled_from(TEMPLATES), SECRETS)
def test_twice_is_no_more_than_once(template: str, secret: str) -> None:
    once = redact_text(template.format(*[secret] * 2))
    assert secret not in redact_text(once)


@settings(deadline=None)
@given(SECRETS)
def test_a_document_stays_a_document(secret: str) -> None:
    value = {
        "token": secret,
        "auth": {"deep": [secret]},
        "argv": ["partage", "--http-token", secret, f"--password={secret}"],
        "env": [{"name": "DB", "value": secret}, {"name": "PARTAGE_RESOURCE", "value": "kept"}],
        "environ": [f"foo={secret}", "CUDA_VISIBLE_DEVICES=0"],
        "environment": {"foo": secret},
        "text": f"password: {secret}",
        "replicas": 4,
        "tokens": 7,
    }
    said = redact_value(value)
    assert secret not in json.dumps(said)
    assert said["env"][1]["value"] == "kept"
    assert (said["replicas"], said["tokens"], set(said)) == (4, 7, set(value))


@pytest.mark.parametrize(
    "text",
    [
        "gpus: [{select: all, time-slicing: {replicas: 4}}]",
        "passDeviceSpecs: true",
        "GPU-f7280889-e65c-4e6e-961f-93ef05412b87::3",
        "sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        "nvidia.com/gpu.shared: 4",
        "NodeName=n1 CPUs=8 Gres=gpu:h100:4",
        "NVIDIA_VISIBLE_DEVICES=all",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "kernel module 580.95.05",
        "- name: nvidia.com/gpu.big\n  value: 4",
        "the password of the registry was refused",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/1974",
        "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("word", ["a.", "a-", "A_", "Ab9+"])
def test_a_long_word_takes_no_longer_than_as_many_short_ones(word: str) -> None:
    """Where each part of it is a place to begin, looking to its end takes minutes: the run's time limit."""
    assert redact_text(word * 150_000)
