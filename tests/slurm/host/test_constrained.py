"""Whether Slurm keeps jobs from GPUs of others, as its files say."""

import pytest

from partage.slurm.host.constrained import constrains_devices

BOTH = "NodeName=g1\nTaskPlugin=task/cgroup,task/affinity\n"


@pytest.mark.parametrize(
    ("slurm", "cgroup", "expected"),
    [
        (BOTH, "ConstrainDevices=yes\n", True),
        ("taskplugin = task/affinity,task/cgroup\n", "# x\n constraindevices = YES # y\n", True),
        (BOTH, "ConstrainDevices=no\n", False),
        (BOTH, "# ConstrainDevices=yes\n", False),
        (BOTH, "", False),
        (BOTH, None, False),
        ("# TaskPlugin=task/cgroup\n", "ConstrainDevices=yes\n", False),
        ("TaskPlugin=task/none # task/cgroup\n", "ConstrainDevices=yes\n", False),
        ("", "ConstrainDevices=yes\n", False),
        (None, "ConstrainDevices=yes\n", False),
    ],
)
def test_both_files_count(tmp_path, slurm, cgroup, expected):
    for name, text in (("slurm.conf", slurm), ("cgroup.conf", cgroup)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert constrains_devices(tmp_path / "slurm.conf") is expected
