"""The lines of gres.conf as values, and what is wrong with each line by itself.

The rules are those of ``slurmd -G`` in 22.05.8 and 24.11.5 (tests/slurm/mistakes.py asks both), and what it
does not say although jobs fail then.
"""

from __future__ import annotations

import re

from partage.slurm.decide import releases
from partage.slurm.model import GresFiles, SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfLine, Notebook
from partage.slurm.text.hostlist import expand_hostlist
from partage.values import Frozen

_KEYS = (
    "autodetect",
    "cores",
    "cpus",
    "count",
    "file",
    "flags",
    "links",
    "multiplefiles",
    "name",
    "nodename",
    "type",
)
_AMOUNT = re.compile(r"(\d{1,15})([kmgtp]?)", re.ASCII | re.IGNORECASE)
_SCALES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_ENV_FLAGS = ("nvidia_gpu_env", "amd_gpu_env", "intel_gpu_env", "opencl_env")
_FLAGS = (*_ENV_FLAGS, "no_gpu_env", "countonly", "one_sharing", "all_sharing", "explicit", "env_uuid")
_NAMES_NO_TYPE = ("mps", "shard")
_CAPABILITY = re.compile(r"/nvidia-cap\d+$", re.ASCII)


class GresLine(GresFiles):
    """One record of gres.conf as it is read. at: where. nodes: None: all."""

    at: ConfLine
    name: str
    nodes: tuple[str, ...] | None = None

    def of(self, node: str) -> bool:
        """Whether it counts on this node."""
        return self.nodes is None or node in self.nodes

    @property
    def devices(self) -> int:
        """How many GRES it makes."""
        if self.multiple:
            return 1
        return len(self.files) or (1 if self.count is None else self.count)


class Detection(Frozen):
    """An ``AutoDetect``. nodes: None: all."""

    how: str
    nodes: tuple[str, ...] | None = None


class GresConf(Frozen):
    """All of gres.conf. dead: slurmd does not start with it."""

    records: tuple[GresLine, ...] = ()
    detections: tuple[Detection, ...] = ()

    def detected(self, node: str) -> str:
        """How this node finds its GPUs by itself; empty: it does not."""
        own = [
            detection.how
            for detection in self.detections
            if detection.nodes is not None and node in detection.nodes
        ]
        everywhere = [detection.how for detection in self.detections if detection.nodes is None]
        how = (own or everywhere or ["off"])[-1]
        return "" if how == "off" else how


def read_gres_conf(file: ConfFile, version: SlurmVersion, notes: Notebook) -> GresConf:
    """The records of a gres.conf."""
    records, detections = [], []
    for line in file.lines:
        if not _well_formed(line, notes):
            continue
        nodes = _nodes(line, notes)
        if line.twice:
            notes.warn(line, f"{line.twice} stands twice in this line: the last one counts")
        if (how := line.get("AutoDetect")) is not None:
            detections.append(Detection(how.lower(), nodes))
            _check_detection(line, how, version, notes)
        if line.get("Name") is not None:
            records.append(_record(line, nodes, version, notes))
    return GresConf(tuple(records), tuple(detections))


def _well_formed(line: ConfLine, notes: Notebook) -> bool:
    if line.rest:
        message = f"{line.rest[:60]!r} is no key and value: slurmd does not start"
        notes.error(line, message, "write Key=value, several with spaces between")
        return False
    for place, (key, _) in enumerate(line.pairs):
        if key.lower() not in _KEYS:
            hint = f"keys are {', '.join(_KEYS)}"
            if key.lower() == "uniqueid":
                hint = "no version has it: Slurm takes UUIDs from AutoDetect only"
            notes.error(line, f"there is no key {key}: slurmd does not start", hint)
            return False
        if key.lower() == "nodename" and place > 0:
            notes.error(line, "NodeName has to be the first key of the line: slurmd does not start")
            return False
    if line.get("Name") is None and line.get("AutoDetect") is None:
        notes.error(line, "the line has no Name", "write Name=gpu, Name=mps or Name=shard")
        return False
    return True


def _nodes(line: ConfLine, notes: Notebook) -> tuple[str, ...] | None:
    text = line.get("NodeName")
    return None if text is None else _expanded(line, text, notes)


def _expanded(line: ConfLine, text: str, notes: Notebook) -> tuple[str, ...]:
    try:
        return tuple(expand_hostlist(text))
    except ValueError as error:
        notes.error(line, str(error))
        return ()


def _check_detection(line: ConfLine, how: str, version: SlurmVersion, notes: Notebook) -> None:
    since = releases.AUTODETECT_SINCE.get(how.lower())
    if line.get("Name") is not None and line.get("NodeName") is None:
        message = "AutoDetect and Name in one line need NodeName: slurmd does not start"
        notes.error(line, message, "write AutoDetect in a line of its own")
    if since is None:
        notes.error(
            line, f"there is no AutoDetect={how}", f"it is one of {', '.join(releases.AUTODETECT_SINCE)}"
        )
    elif version < since:
        notes.error(line, f"Slurm {version} has no AutoDetect={how}: it takes {since} or newer")
    elif how.lower() == "nvml":
        message = "AutoDetect=nvml needs a Slurm that was built with NVML; without it slurmd says nothing"
        hint = "see that 'slurmd -G' lists the GPUs; Debian has it in slurm-wlm-nvml-plugin (contrib)"
        notes.warn(line, message, hint)


def _record(
    line: ConfLine, nodes: tuple[str, ...] | None, version: SlurmVersion, notes: Notebook
) -> GresLine:
    name = (line.get("Name") or "").lower()
    single, several = line.get("File"), line.get("MultipleFiles")
    if single is not None and several is not None:
        notes.error(
            line, "File and MultipleFiles exclude each other: slurmd does not start",
            "MultipleFiles for a MIG device, File for everything else",
        )  # fmt: skip
    files = _expanded(line, several or single or "", notes)
    record = GresLine(
        at=line,
        name=name,
        nodes=nodes,
        type=line.get("Type") or "",
        count=_count(line, notes),
        files=files,
        multiple=several is not None,
        flags=tuple(flag.lower() for flag in (line.get("Flags") or "").split(",") if flag),
    )
    _check_files(record, version, notes)
    _check_flags(record, version, notes)
    if record.type and name in _NAMES_NO_TYPE:
        notes.warn(line, f"Type of {name} has no effect: it is that of the GPU")
    return record


def _count(line: ConfLine, notes: Notebook) -> int | None:
    text = line.get("Count")
    if text is None:
        return None
    amount = amount_of(text)
    if amount is None:
        notes.error(line, f"Count={text[:20]} is not a number: slurmd does not start")
    return amount


def amount_of(text: str) -> int | None:
    """``200``, ``2K``; None: it is none."""
    match = _AMOUNT.fullmatch(text)
    return None if match is None else int(match[1]) * _SCALES[match[2].lower()]


def _check_files(record: GresLine, version: SlurmVersion, notes: Notebook) -> None:
    line = record.at
    if record.multiple and version < releases.MULTIPLE_FILES:
        message = f"Slurm {version} has no MultipleFiles: it takes {releases.MULTIPLE_FILES} or newer"
        notes.error(line, message)
    if record.multiple and len(record.files) == 1:
        notes.error(line, "MultipleFiles names one file only: slurmd does not start", "write File=")
    if record.name != "gpu":
        return
    given = record.count
    if given is not None and record.files and not record.multiple and given != len(record.files):
        message = f"Count={given}, but File names {len(record.files)}: slurmd does not start"
        notes.error(line, message, "leave Count out, or make it the number of files")
    if not record.multiple and any(_CAPABILITY.search(path) for path in record.files):
        message = (
            "a MIG device is named by one capability file alone, so its other files are not kept from jobs"
        )
        hint = "name all three, of GPU, GPU instance and compute instance, with MultipleFiles="
        notes.warn(line, message, hint)
    if not record.files and "countonly" not in record.flags:
        message = "a gpu without File: jobs get no CUDA_VISIBLE_DEVICES, and nothing keeps them apart"
        notes.error(line, message, "write File=/dev/nvidia0, or use AutoDetect")


def _check_flags(record: GresLine, version: SlurmVersion, notes: Notebook) -> None:
    line, flags = record.at, record.flags
    for flag in flags:
        if flag not in _FLAGS:
            notes.warn(line, f"there is no flag {flag}", f"flags are {', '.join(_FLAGS)}")
    if "no_gpu_env" in flags and any(flag in _ENV_FLAGS for flag in flags):
        notes.error(line, "no_gpu_env excludes all other flags that end in _env: slurmd does not start")
    sets_env = any(flag in _ENV_FLAGS or flag == "no_gpu_env" for flag in flags)
    loses_env = releases.FLAGS_TAKE_ENV <= version < releases.FLAGS_KEEP_ENV
    if record.name == "gpu" and flags and not sets_env and loses_env:
        message = "with Flags, but none for the environment, jobs get no CUDA_VISIBLE_DEVICES"
        notes.warn(
            line, message, f"add {releases.NVIDIA_ENV}: Flags={','.join((*flags, releases.NVIDIA_ENV))}"
        )
