# ruff: noqa: E501 - a line is a case
"""Hand-written configurations, right and wrong, as the field's guides and its questions have them.

Each: a name, GresTypes, ``Gres=`` of node ``n``, gres.conf, lines of cgroup.conf, more lines of slurm.conf.
"""

from __future__ import annotations

from dataclasses import dataclass

D = "/dev/nvidia"
CAP = "/dev/nvidia-caps/nvidia-cap"


@dataclass(frozen=True)
class Hand:
    name: str
    types: str
    gres: str
    gres_conf: str
    cgroup: str = "ConstrainDevices=yes"
    slurm: str = ""


RIGHT = [
    Hand("two gpus", "gpu", "gpu:a100:2", f"Name=gpu Type=a100 File={D}[0-1]"),
    Hand("two gpus, spaces", "gpu", "gpu:a100:2", f"NodeName=n  Name = gpu Type=a100 File={D}[0-1]  # both"),
    Hand("untyped", "gpu", "gpu:2", f"Name=gpu File={D}[0-1]"),
    Hand("count said", "gpu", "gpu:a100:2", f"Name=gpu Type=a100 Count=2 File={D}[0-1]"),
    Hand("lower case keys", "gpu", "gpu:a100:2", f"name=gpu type=a100 file={D}[0-1]"),
    Hand("continued line", "gpu", "gpu:a100:2", f"Name=gpu Type=a100 \\\nFile={D}[0-1]"),
    Hand("mps of one gpu", "gpu,mps", "gpu:a100:1,mps:100", f"Name=gpu Type=a100 File={D}0\nName=mps Count=100 File={D}0"),
    Hand("mps split", "gpu,mps", "gpu:a100:2,mps:200", f"Name=gpu Type=a100 File={D}[0-1]\nName=mps Count=200"),
    Hand("mps of slurm.conf alone", "gpu,mps", "gpu:a100:2,mps:200", f"Name=gpu Type=a100 File={D}[0-1]"),
    Hand("shard", "gpu,shard", "gpu:a100:2,shard:8", f"Name=gpu Type=a100 File={D}[0-1]\nName=shard Count=4 File={D}0\nName=shard Count=4 File={D}1"),
    Hand("shard split", "gpu,shard", "gpu:a100:2,shard:8", f"Name=gpu Type=a100 File={D}[0-1]\nName=shard Count=8"),
    Hand("mig", "gpu", "gpu:1g.5gb:1,gpu:3g.20gb:1", f"Name=gpu Type=1g.5gb MultipleFiles={D}0,{CAP}66,{CAP}67\nName=gpu Type=3g.20gb MultipleFiles={D}0,{CAP}21,{CAP}22"),
    Hand("mig by gi capability", "gpu", "gpu:1g.10gb:2", f"Name=gpu Type=1g.10gb File={CAP}66\nName=gpu Type=1g.10gb File={CAP}75"),
    Hand("count only", "gpu", "gpu:a100:2", "Name=gpu Type=a100 Count=2 Flags=CountOnly"),
    Hand("flags", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 Flags=nvidia_gpu_env"),
]  # fmt: skip

WRONG = [
    Hand("unknown key", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 UniqueId=GPU-1"),
    Hand("no key", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 oops"),
    Hand("node name last", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 NodeName=n"),
    Hand("file and multiple", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 MultipleFiles={D}0,{D}1"),
    Hand("multiple of one", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 MultipleFiles={D}0"),
    Hand("count differs", "gpu", "gpu:a100:3", f"Name=gpu Type=a100 Count=3 File={D}[0-1]"),
    Hand("file twice", "gpu", "gpu:a100:2", f"Name=gpu Type=a100 File={D}0\nName=gpu Type=a100 File={D}0"),
    Hand("type differs", "gpu", "gpu:a100:2", f"Name=gpu Type=h100 File={D}[0-1]"),
    Hand("type case differs", "gpu", "gpu:a100:2", f"Name=gpu Type=A100 File={D}[0-1]"),
    Hand("too few", "gpu", "gpu:a100:2", f"Name=gpu Type=a100 File={D}0"),
    Hand("too many", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}[0-1]"),
    Hand("no file", "gpu", "gpu:a100:2", "Name=gpu Type=a100 Count=2"),
    Hand("empty gres.conf", "gpu", "gpu:a100:2", ""),
    Hand("untyped in slurm.conf", "gpu", "gpu:2", f"Name=gpu Type=a100 File={D}[0-1]"),
    Hand("untyped in gres.conf", "gpu", "gpu:a100:2", f"Name=gpu File={D}[0-1]"),
    Hand("shard of another file", "gpu,shard", "gpu:a100:1,shard:4", f"Name=gpu Type=a100 File={D}0\nName=shard Count=4 File={D}1"),
    Hand("mps without gpu", "gpu,mps", "mps:100", f"Name=mps Count=100 File={D}0"),
    Hand("mps with and without file", "gpu,mps", "gpu:a100:2,mps:200", f"Name=gpu Type=a100 File={D}[0-1]\nName=mps Count=100 File={D}0\nName=mps Count=100"),
    Hand("invalid name", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0\nName=shard Count=4 File={D}0"),
    Hand("invalid count", "gpu,shard", "gpu:a100:1,shard:4", f"Name=gpu Type=a100 File={D}0\nName=shard Count=4x File={D}0"),
    Hand("unknown autodetect", "gpu", "gpu:a100:1", f"AutoDetect=nvlm\nName=gpu Type=a100 File={D}0"),
    Hand("autodetect nvml absent", "gpu", "gpu:a100:1", f"AutoDetect=nvml\nName=gpu Type=a100 File={D}0"),
    Hand("env flags that exclude", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 Flags=no_gpu_env,nvidia_gpu_env"),
    Hand("unknown flag", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 Flags=nvidia_env"),
    Hand("both mps and shard", "gpu,mps,shard", "gpu:a100:2,mps:100,shard:4", f"Name=gpu Type=a100 File={D}[0-1]\nName=mps Count=100 File={D}0\nName=shard Count=4 File={D}1"),
    Hand("mig and mps", "gpu,mps", "gpu:1g.5gb:1,gpu:a100:1,mps:100", f"Name=gpu Type=1g.5gb MultipleFiles={D}0,{CAP}66,{CAP}67\nName=gpu Type=a100 File={D}1\nName=mps Count=100 File={D}1"),
    Hand("mig and shard by file", "gpu,shard", "gpu:1g.5gb:1,shard:4", f"Name=gpu Type=1g.5gb MultipleFiles={D}0,{CAP}66,{CAP}67\nName=shard Count=4 File={D}0"),
    Hand("gres type missing", "gpu", "gpu:a100:1,mps:100", f"Name=gpu Type=a100 File={D}0\nName=mps Count=100 File={D}0"),
    Hand("missing count suffix", "gpu", "gpu:a100", f"Name=gpu Type=a100 File={D}0"),
    Hand("accounting without slurmdbd", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0", slurm="AccountingStorageTRES=gres/gpu"),
    Hand("key twice", "gpu", "gpu:a100:1", f"Name=gpu Type=h100 Type=a100 File={D}0"),
    Hand("upper case in GresTypes", "GPU", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0"),
    Hand("space in GresTypes", "gpu, mps", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0"),
    Hand("autodetect in line without node", "gpu", "gpu:a100:1", f"AutoDetect=nvml Name=gpu Type=a100 File={D}0"),
    Hand("as in a request", "gpu", "gres/gpu:a100:1", f"Name=gpu Type=a100 File={D}0"),
    Hand("count with an equals sign", "gpu", "gpu:a100=1", f"Name=gpu Type=a100 File={D}0"),
    Hand("mps of a file twice", "gpu,mps", "gpu:a100:1,mps:200", f"Name=gpu Type=a100 File={D}0\nName=mps Count=100 File={D}0\nName=mps Count=100 File={D}0"),
    Hand("other node", "gpu", "gpu:a100:1", f"NodeName=m Name=gpu Type=a100 File={D}0"),
    Hand("mps counts differ", "gpu,mps", "gpu:a100:1,mps:100", f"Name=gpu Type=a100 File={D}0\nName=mps Count=50 File={D}0"),
    *(
        Hand(f"cgroup {key}", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0", cgroup=f"{key}={value}\nConstrainDevices=yes")
        for key, value in (
            ("AllowedDevicesFile", "/etc/slurm/allowed.conf"), ("CgroupAutomount", "yes"), ("TaskAffinity", "no"),
            ("CgroupReleaseAgentDir", "/etc/slurm/cgroup"), ("ConstrainKmemSpace", "no"), ("ConstrainCores", "yes"),
            ("ConstrainRAMSpace", "yes"), ("AllowedRAMSpace", "100"), ("MaxRAMPercent", "98"), ("Nonsense", "1"),
            ("CgroupMountpoint", "/sys/fs/cgroup"), ("CgroupPlugin", "autodetect"), ("ConstrainSwapSpace", "yes"),
            ("IgnoreSystemd", "yes"), ("EnableControllers", "yes"), ("MinRAMSpace", "30"), ("MemorySwappiness", "10"),
            ("AllowedKmemSpace", "10"), ("MaxKmemPercent", "10"), ("MinKmemSpace", "10"), ("AllowedSwapSpace", "1"),
            ("MaxSwapPercent", "10"), ("SignalChildrenProcesses", "yes"), ("SystemdTimeout", "1000"), ("CgroupSlice", "system.slice"),
            ("EnableExtraControllers", "io"), ("IgnoreSystemdOnFailure", "yes"),
        )
    ),
]  # fmt: skip
