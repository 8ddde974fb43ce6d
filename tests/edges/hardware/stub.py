"""A node with the stand-in ``nvml_stub.c`` for a driver: its roots are under one directory."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.edges.host.procfs import INITIAL_PID_NAMESPACE
from partage.model.ids import GpuUuid, PciBusId
from partage.units import MIB

H100_MEMORY_BYTES = 81559 * MIB
SWITCH = "00000000:E0:00.0"
H100_PROFILES = {
    0: "19 1 9984 7 1 0 1 2 3 4 5 6",
    1: "14 2 20096 3 2 0 2 4",
    2: "9 3 40448 2 4 0 4",
    3: "5 4 40448 1 4 0",
    4: "0 7 81152 1 8 0",
    7: "20 1 9984 1 1 0 1 2 3 4 5 6",
    9: "15 1 20096 4 2 0 2 4 6",
}
"""Constant of queries to nvidia-smi's id, compute slices, MiB, how many at most, memory slices, starts."""

UNKNOWN_PROFILES = {
    0: ("14 1 24192 4 3 0 3 6 9", "1 1 1 1 0"),
    1: ("5 2 48512 2 6 0 6", "2 2 2 2 0"),
    3: ("0 4 97280 1 12 0", "2 4 4 4 1"),
    15: ("65 1 24192 1 3 0 3 6 9", "1 4 4 4 1"),
}
"""As H100_PROFILES, and the engines: copy, decoder, encoder, jpeg, ofa. Instances share the copy engines."""

SLICES = ("Default", "Short", "Medium", "Long")
NVIDIA_SMI = """#!{python} -S
import ctypes, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + chr(10))
{before}
driver = ctypes.CDLL({library!r})
if sys.argv[1] == "compute-policy":
    uuid, change = sys.argv[3], sys.argv[4] == "--set-timeslice"
    found = driver.stubSlice(uuid.encode(), int(sys.argv[5]) if change else -1)
    if found < 0:
        print("Failed to", "set" if change else "list", "timeslice policy for GPU 0 : Not Supported")
        sys.exit(3)
    print("Timeslice:", {slices}[found])
    sys.exit(0)
code = ctypes.CDLL({library!r}).stubReset(sys.argv[-1].encode())
if code:
    why = "In use by another client" if code == 19 else "Not Supported"
    print("The following GPUs could not be reset:", why)
sys.exit(code)
"""


class StubNode:
    """Change ``keys`` and ``write``; or use the methods, which write."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root = root
        self.host = Host(
            driver=root,
            proc=root / "proc",
            sys=root / "sys",
            dev=root / "dev",
            run=root / "run",
            etc=root / "etc",
        )
        self.library = root / "usr/lib64/libnvidia-ml.so.1"
        self.library.parent.mkdir(parents=True)
        shutil.copyfile(library, self.library)
        self.keys: dict[str, object] = {"driver": "550.163.01", "nvml": "12.550.163.01", "cuda": 12040}
        self._events = 0
        self.write()

    def write(self, **keys: object) -> None:
        """Set keys (None removes) and put the whole file in place at once."""
        for name, value in keys.items():
            self.keys[name.replace("__", ".")] = value
        lines = [f"{name} {value}" for name, value in self.keys.items() if value is not None]
        fresh = self.library.with_name("machine.new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.library.with_name("machine.txt"))

    def file(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def add_h100s(self, count: int) -> StubNode:
        """As on an HGX board: 18 links of each GPU lead to switches."""
        for index in range(count):
            self.keys |= {
                f"gpu.{index}.{name}": value
                for name, value in {
                    "uuid": self.uuid(index),
                    "bus": self.bus(index),
                    "device": "0x233010de",
                    "subsystem": "0x16c110de",
                    "name": "NVIDIA H100 80GB HBM3",
                    "minor": count - 1 - index,
                    "arch": 9,
                    "cc": "9.0",
                    "memory": H100_MEMORY_BYTES,
                    "slice": 0,
                    "mode": 0,
                    "mig": "0 0",
                    "events": "0x1cff",
                    "field.230": 0,
                    "field.144": 0,
                    "field.145": 0,
                    "fabric": "3 0",
                    **{f"link.{link}": SWITCH for link in range(18)},
                    **{f"link.{link}.type": 2 for link in range(18)},
                }.items()
            }
            for other in range(count):
                self.keys[f"path.{index}.{other}"] = 40 if index // 4 == other // 4 else 50
        self.write(count=count)
        return self

    def with_live_mig(self, index: int = 0, *, direct: bool = True) -> StubNode:
        """The GPU keeps MIG mode and instances itself. direct: the mode changes without a reset."""
        profiles = {f"gpu.{index}.profile.{constant}": text for constant, text in H100_PROFILES.items()}
        self.keys |= profiles
        self.keys |= {
            f"gpu.{index}.live": "direct" if direct else "reset",
            f"gpu.{index}.field.184": int(direct),
        }
        self.write()
        return self

    def with_unknown_card(self, index: int = 0) -> StubNode:
        """The GPU is of a model that no catalogue has, with 4 compute slices on 12 memory slices."""
        for constant in H100_PROFILES:
            self.keys.pop(f"gpu.{index}.profile.{constant}", None)
        self.keys |= {
            f"gpu.{index}.name": "NVIDIA X900",
            f"gpu.{index}.device": "0x999910de",
            f"gpu.{index}.memory": 97887 * MIB,
            f"gpu.{index}.most": 4,
            "profiles": 18,
        }
        for constant, (row, engines) in UNKNOWN_PROFILES.items():
            self.keys[f"gpu.{index}.profile.{constant}"] = row
            self.keys[f"gpu.{index}.profile.{constant}.engines"] = engines
        self.write()
        return self

    def add_nvidia_smi(self, before: str = "") -> Path:
        """An nvidia-smi that resets live GPUs. before: Python that it runs first. Returns its log."""
        path, log = self.root / "usr/bin/nvidia-smi", self.root / "nvidia-smi.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            NVIDIA_SMI.format(
                python=sys.executable,
                library=str(self.library),
                log=str(log),
                before=before,
                slices=SLICES,
            )
        )
        path.chmod(0o755)
        return log

    def process(self, pid: int, name: str, *opened: str, listed: str | None = None, gpu: int = 0) -> None:
        """A process with device files open. listed: ``GI CI`` where the driver lists it, too."""
        self.file(f"proc/{pid}/comm", name + "\n")
        files = self.root / f"proc/{pid}/fd"
        files.mkdir(exist_ok=True)
        for number, target in enumerate(opened):
            (files / str(number)).symlink_to(target)
        if listed is not None:
            count = sum(key.startswith(f"gpu.{gpu}.process.") for key in self.keys)
            self.write(**{f"gpu.{gpu}.process.{count}": f"{pid} {listed}"})

    def lacks(self, *functions: str) -> None:
        """The library has these no more: its table of symbols calls them otherwise."""
        data = self.library.read_bytes()
        for name in functions:
            before = b"\0" + name.encode() + b"\0"
            assert before in data, name
            data = data.replace(before, b"\0X" + name.encode()[1:] + b"\0")
        self.library.write_bytes(data)

    def see_all(self) -> StubNode:
        """/proc shows the node's own pid namespace."""
        own = self.root / "proc/self/ns"
        own.mkdir(parents=True, exist_ok=True)
        (own / "pid").symlink_to(INITIAL_PID_NAMESPACE)
        return self

    def works(
        self,
        pid: int,
        name: str = "python",
        *,
        gpu: int = 0,
        used: int = -1,
        kinds: str = "C",
        part: str = "-1 -1",
        cgroup: str = "0::/",
        start: int = 100,
    ) -> None:
        """A process with a context that the driver lists, and what /proc says of it."""
        stat = f"{pid} ({name}) S {' '.join('0' * 18)} {start} 0 0"
        for file, text in (("stat", stat), ("cgroup", cgroup), ("status", "Name: x\nUid:\t1000\t0\t0\t0")):
            self.file(f"proc/{pid}/{file}", text + "\n")
        self.process(pid, name, listed=f"{part} {used} {kinds}", gpu=gpu)

    def calls(self, function: str | None = None) -> int:
        """How often this process has called a function of NVML, or all of them but the wait for events."""
        counted: int = ctypes.CDLL(str(self.library)).stubCalls(function and function.encode())
        return counted

    def hangs_in(self) -> str:
        """The function that hung last, or hangs."""
        told = self.library.with_name("hangs.txt")
        return told.read_text() if told.exists() else ""

    def leaves(self, pid: int) -> None:
        """The driver lists it no more."""
        for gpu in range(8):
            keys = [key for key in self.keys if key.startswith(f"gpu.{gpu}.process.")]
            rows = [str(self.keys.pop(key)) for key in keys]
            rest = [row for row in rows if row.split()[0] != str(pid)]
            self.keys |= {f"gpu.{gpu}.process.{number}": row for number, row in enumerate(rest)}
        self.write()

    @staticmethod
    def uuid(index: int) -> GpuUuid:
        return GpuUuid(f"GPU-0000000{index}-1111-2222-3333-444444444444")

    @staticmethod
    def bus(index: int) -> PciBusId:
        return PciBusId(f"00000000:{0x1A + 0x10 * index:02X}:00.0")

    def lose(self, index: int, code: int = 15) -> None:
        self.keys[f"gpu.{index}.code"] = code
        self.write()

    def find_again(self, index: int) -> None:
        self.keys[f"gpu.{index}.code"] = None
        self.write()

    def driver_gone(self, code: int = 9) -> None:
        self.write(init=code, all=code)

    def driver_loaded(self, version: str = "550.163.01") -> None:
        self.write(init=None, all=None, driver=version)

    def raise_xid(self, gpu: int, code: int, gi: int = -1, ci: int = -1) -> None:
        self._event(f"{gpu} 8 {code} {gi} {ci}")

    def raise_event(self, gpu: int, kind: int) -> None:
        self._event(f"{gpu} {kind:x} 0 -1 -1")

    def _event(self, text: str) -> None:
        self.keys[f"event.{self._events}"] = text
        self._events += 1
        self.write()
