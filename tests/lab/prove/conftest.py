"""Nodes to prove things on: a simulated one, and one that is taken for real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.answers import common_node
from partage.cli.main import run
from partage.model.gpu import ComputeMode
from partage.sim.mps.node import MpsNode
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from partage.units import GIB, MIB
from tests.sim.mps.programs import install_programs

STAND_IN = Path(__file__).with_name("stand_in.py")
LIMIT = 10 * GIB


@dataclass
class Real:
    """A node whose GPUs and tenants are stood in for, with whatever daemon a test starts.

    It is ``partage prove`` without --machine that runs on it.
    """

    root: Path
    hardware: SimulatedHardware
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def inventory(self):
        return asyncio.run(self.hardware.observe())

    @property
    def pipe(self):
        return self.root / "run/mps" / self.inventory.gpus[0].uuid / "pipe"

    def starts_daemon(self, *, ignores_limits=False, multi_user=True):
        """Of GPU 0, as the agent's would be: a tenth of 100 GiB and a quarter of the threads each."""
        gpu = self.inventory.gpus[0]
        log = self.pipe.with_name("log")
        for directory in (self.pipe, log):
            directory.mkdir(parents=True)
        node = MpsNode({gpu.uuid: gpu.memory_bytes}, ignores_limits=ignores_limits)
        program = install_programs(self.root / "usr/bin", node)
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        options = ["-multiuser-server"] if multi_user else []
        daemon = subprocess.Popen([program, "-f", *options], env=env, stderr=subprocess.PIPE)
        self.daemons.append(daemon)
        assert daemon.stderr is not None
        daemon.stderr.readline()  # it says something once it runs
        orders = (
            f"set_default_device_pinned_mem_limit 0 {LIMIT // MIB}M\n"
            "set_default_active_thread_percentage 25\n"
        )
        subprocess.run([program], input=orders, env=env, text=True, check=True, capture_output=True)

    def proves(self, *arguments):
        """Exit code, the document (None for a refusal) and what was said on stderr."""
        here = (
            "--run-dir",
            str(self.root / "run"),
            "--driver-root",
            str(self.root),
            "--pod-resources",
            "none",
        )
        python = ("--python", str(self.root / "python3"))
        gpu = self.inventory.gpus[0]
        device = gpu.mig_devices[0] if gpu.mig_devices else gpu
        self.monkeypatch.setenv("STAND_IN_BYTES", str(device.memory_bytes))
        code = run(["prove", *here, *python, "-o", "json", *arguments])
        said = self.capsys.readouterr()
        document = json.loads(said.out)
        return code, document if document["kind"] == "Proof" else None, said.err

    def policy(self, text):
        path = self.root / "policy.yaml"
        path.write_text(f"version: partage/v1\ngpus:\n  - select: all\n    {text}\n")
        return ("--policy", str(path))


def machine_of(name, mode=ComputeMode.DEFAULT):
    machine = load_machine(name)
    gpus = tuple(replace(gpu, compute_mode=mode) for gpu in machine.inventory.gpus)
    return Machine(name, replace(machine.inventory, gpus=gpus, simulated=False))


@pytest.fixture
def real(request, short_dir, monkeypatch, capsys):
    """One H100 in default mode, or what it is parametrized with: machine and compute mode."""
    name, mode = getattr(request, "param", ("1xh100-sxm5-80gb", ComputeMode.DEFAULT))
    hardware = SimulatedHardware(machine_of(name, mode))
    node = Real(short_dir, hardware, capsys, monkeypatch)
    # The verb opens the node itself, and the stand-in for NVML has no clients of MPS: its port is replaced.
    monkeypatch.setattr(common_node, "open_hardware", lambda *_arguments, **_named: hardware)
    python = short_dir / "python3"
    python.write_text(
        "#!/bin/sh\n"
        'test "$1" = -c && { echo 9.9; exit 0; }\n'
        f"export STAND_IN_MODE={mode.name.lower().replace('_', '-')} STAND_IN_THREADS=25\n"
        f'PYTHONPATH="$PYTHONPATH:{STAND_IN.parents[3] / "src"}" exec {sys.executable} {STAND_IN} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.delenv("PARTAGE_GPUS", raising=False)
    yield node
    for daemon in node.daemons:
        daemon.kill()
        daemon.communicate()


@contextlib.contextmanager
def client(pipe):
    """Somebody else's client of a daemon."""
    from partage.sim.mps.client import MpsConnection

    connection = MpsConnection(pipe, os.environ)
    try:
        yield connection
    finally:
        connection.close()


def verdicts(document):
    """Attack to verdict, of the shares that were offered."""
    return {row["attack"]: row["verdict"] for row in document["rows"] if row["share"] is not None}


def row_of(document, attack):
    (found,) = [row for row in document["rows"] if row["attack"] == attack]
    return found
