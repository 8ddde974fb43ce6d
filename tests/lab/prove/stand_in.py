"""A stand-in for ``tenant_program``: the same protocol, the simulated MPS daemon, and no CUDA.

What MPS does comes from the simulated control program. What a GPU does without it is made up here: one
process has all of it, and in exclusive-process mode nobody but the MPS server has any.
"""

import argparse
import fcntl
import json
import os
import sys
from pathlib import Path

from partage.sim.mps.client import CudaError, MpsConnection, NoDaemon
from partage.sim.mps.server import become_user
from partage.units import MIB

MULTIPROCESSORS = 132
ALL = "aaaaaaaa-0000-0000-0000-000000000000,bbbbbbbb-0000-0000-0000-000000000000"


class Bare:
    """A context without MPS."""

    def __init__(self):
        if os.environ["STAND_IN_MODE"] == "exclusive-process":
            raise CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE")
        self.left = int(os.environ["STAND_IN_BYTES"])
        if os.environ.get("PARTAGE_GUARD") == "" and "guard" in os.environ.get("PYTHONPATH", ""):
            self.left = int(os.environ["PARTAGE_MEMORY_BYTES"]) - 512 * MIB
        self.lost = ""

    def allocate(self, amount):
        if amount > self.left:
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY")
        self.left -= amount

    def launch(self):
        if self.lost:
            raise CudaError(self.lost)

    def fault(self):
        self.lost = "CUDA_ERROR_ILLEGAL_ADDRESS"
        raise CudaError(self.lost)


class Limited(Bare):
    """A context in a cgroup, with the driver's limits as the stand-in for NVML was told them.

    Backend misc: of the cgroup and those above it, the nearest limit counts. Nothing is evicted, nobody is
    ended, managed memory is not counted. That is what is documented, and no more.
    """

    CONTEXT_BYTES = 512 * MIB

    def __init__(self, told):
        super().__init__()
        self.told, self.charges = Path(told), Path(told).with_name("charges.json")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        self.place = next(line[3:] for line in lines if line.startswith("0::"))
        self.allocate(self.CONTEXT_BYTES)

    def limits(self):
        rows = (line.split(" ") for line in self.told.read_text().splitlines())
        return {place.removeprefix("/sys/fs/cgroup"): int(hard) for _, place, _, hard in rows}

    def allocate(self, amount):
        with self.charges.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            rows = [row for row in json.load(file) if works(row[0])]
            above = [place for place in self.limits() if f"{self.place}/".startswith(f"{place}/")]
            if above:
                nearest = max(above, key=len)
                used = sum(row[2] for row in rows if f"{row[1]}/".startswith(f"{nearest}/"))
                if used + amount > self.limits()[nearest]:
                    raise CudaError("CUDA_ERROR_OUT_OF_MEMORY")
            super().allocate(amount)
            file.seek(0)
            file.truncate()
            json.dump([*rows, [os.getpid(), self.place, amount]], file)

    def managed(self, amount):
        """Not counted."""


def works(pid):
    """Whether a process has memory: one that has ended, and that nobody has waited for, has none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--engine")
    parser.add_argument("--device")
    parser.add_argument("uid", nargs="?", type=int, default=os.geteuid())
    options = parser.parse_intermixed_args()
    become_user(options.uid)
    try:
        tenant = connected()
    except CudaError as refusal:
        print("error", refusal, flush=True)
        return 1
    print("ok", flush=True)
    for line in sys.stdin:
        print(answer(tenant, line.split()), flush=True)
    return 0


def connected():
    if (marker := os.environ.get("STAND_IN_SHM")) and not Path("/dev/shm", marker).exists():
        raise CudaError("CUDA_ERROR_MPS_CONNECTION_FAILED")
    if told := os.environ.get("STAND_IN_LIMITS"):
        return Limited(told)
    if os.environ.get("STAND_IN_LOST"):  # it does not reach the daemon, and nobody says so
        return Bare()
    try:
        return MpsConnection(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), os.environ)
    except NoDaemon:
        return Bare()


def answer(tenant, words):
    if words == ["facts"]:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", ALL).replace("GPU-", "").replace("MIG-", "")
        threads = min(
            int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")),
            int(os.environ["STAND_IN_THREADS"]),
        )
        facts = {"devices": shown.split(","), "multiprocessors": MULTIPROCESSORS * threads // 100}
        return f"ok {json.dumps(facts)}"
    try:
        getattr(tenant, words[0])(*map(int, words[1:]))
    except CudaError as refusal:
        return f"error {refusal}"
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
