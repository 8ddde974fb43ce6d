"""A file that a person names is read once, within a limit, and nobody waits for a pipe that none writes to.

A verb that waits is ended by pytest-timeout. The agent runs as a program of its own: it starts its helper.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.cli.main import run

LIMIT_S = 60.0
PARTAGE = [sys.executable, "-m", "partage"]
NODE = "--machine 2xh100-sxm5-80gb"
VERBS = {
    "a policy to check": "check {}",
    "a policy to plan": f"plan {NODE} --policy {{}}",
    "a policy to apply": f"apply {NODE} --policy {{}}",
    "a policy to compare": f"assert {NODE} --policy {{}}",
    "a policy of the agent": f"agent {NODE} --state-dir state --run-dir run --kubelet-dir dp --policy {{}}",
    "labels of the node": f"plan {NODE} --policy good.yaml --node-labels {{}}",
    "a machine": "show --machine {}",
    "a manifest": f"explain {NODE} {{}}",
    "a workload": "advise --gpu h100-sxm5-80gb --workload-file {}",
    "rules of a provider": "check good.yaml --provider {}",
    "a story": "simulate {}",
    "a trace of pods": "simulate --trace {} --machines h100-sxm5-80gb",
    "nodes of a fleet": "simulate --trace trace.csv --fleet {}",
    "a trace of memory": "rightsize --gpu h100-sxm5-80gb --trace {}",
    "a measurement": "bench --read {}",
    "a proof": "prove --read {}",
    "nodes of Slurm": "slurm config --cluster {}",
    "lines of gres.conf": "slurm check --slurm-version 24.11.5 {}",
    "a token": "rightsize --gpu h100-sxm5-80gb --prometheus http://127.0.0.1:1 --token-file {}",
    "a token of agents": "web --agent n1=http://127.0.0.1:1 --http 127.0.0.1:0 --agent-token-file {}",
    "certificates of agents": "web --agent n1=https://127.0.0.1:1 --http 127.0.0.1:0 --agent-ca {}",
    "a token of readers": f"agent {NODE} --state-dir state --run-dir run --kubelet-dir dp "
    "--http 127.0.0.1:0 --http-token-file {}",
    "a certificate": f"agent {NODE} --state-dir state --run-dir run --kubelet-dir dp "
    "--http 127.0.0.1:0 --http-cert {0} --http-key {0}",
    "a kubeconfig": f"agent {NODE} --state-dir state --run-dir run --kubelet-dir dp "
    "--node-name n1 --cluster {}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("endless")
    os.mkfifo(place / "pipe.yaml")
    (place / "good.yaml").write_text("version: partage/v1\n")
    (place / "trace.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1000,1,500\n")
    (place / "dp").mkdir()
    (place / "zero.yaml").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(place)  # a socket's path is short
        try:
            listening.bind("socket.yaml")
        finally:
            os.chdir(here)
        yield place


def partage(folder: Path, words: str, **more: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*PARTAGE, *shlex.split(words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        **more,
    )


OTHERS = [(verb, name) for verb in ("a policy to check", "a certificate") for name in ("zero", "socket")]


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(("verb", "name"), [*((verb, "pipe") for verb in VERBS), *OTHERS])
def test_it_is_wrong_input_said_at_once(
    folder: Path,
    verb: str,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = VERBS[verb].format(f"{name}.yaml")
    if words.startswith("agent "):
        answer = partage(folder, words)
        code, said = answer.returncode, answer.stdout + answer.stderr
    else:
        for variable in [name for name in os.environ if name.startswith("KUBE")]:
            monkeypatch.delenv(variable)
        monkeypatch.chdir(folder)
        code = run(shlex.split(words))
        said = "".join(capfd.readouterr())
    assert code == 2, said
    assert "not a regular file" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("verb", ["a policy to check", "a policy to plan", "a trace of memory"])
def test_a_pipe_that_the_shell_has_made_is_read(folder: Path, verb: str) -> None:
    policy = "version: partage/v1\n"
    text = policy if "policy" in verb else "time,namespace,pod,container,memory_bytes\n"
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        answer = partage(folder, VERBS[verb].format(f"/dev/fd/{reading}"), pass_fds=(reading,))
    finally:
        os.close(reading)
    assert "cannot be read" not in answer.stderr
    assert answer.returncode in ((0,) if "policy" in verb else (0, 1, 2)), answer
    typed = partage(folder, "check -", input=policy)
    assert typed.returncode == 0, typed.stderr
