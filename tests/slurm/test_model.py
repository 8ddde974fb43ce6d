"""Versions of Slurm."""

import pytest

from partage.slurm.model import SlurmVersion


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("22.05", SlurmVersion(22, 5, 0)),
        ("24.11.5", SlurmVersion(24, 11, 5)),
        ("slurm 22.05.8", SlurmVersion(22, 5, 8)),
        ("slurm-wlm 22.05.8", SlurmVersion(22, 5, 8)),
        ("22.05.8-4+deb12u3", SlurmVersion(22, 5, 8)),
        ("23.11.4-1.2ubuntu5", SlurmVersion(23, 11, 4)),
        ("26-05-3", SlurmVersion(26, 5, 3)),
        ("26.11.0-0rc1", SlurmVersion(26, 11, 0)),
    ],
)
def test_versions(text, version):
    assert SlurmVersion.parse(text) == version


@pytest.mark.parametrize("text", ["", "22", "v22.05", "22.05.8.4x y", "22.5", "two", "9" * 80])
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match="is not a version of Slurm"):
        SlurmVersion.parse(text)


def test_versions_are_ordered_and_written_with_zeros():
    assert SlurmVersion.parse("22.05.8") < SlurmVersion.parse("23.02.7") < SlurmVersion.parse("23.11")
    assert str(SlurmVersion.parse("22.05")) == "22.05.0"
