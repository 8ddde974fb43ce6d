"""``partage record``."""

import json

import pytest

from partage.faces.cli.main import run
from partage.sim.node.files.load import load_machine


@pytest.mark.parametrize("machine", ["8xa100-40gb+2xl4", "examples/07-mixed-node/machine.json"])
def test_what_is_recorded_is_the_same_machine(tmp_path, machine):
    file = tmp_path / "machine.json"
    assert run(["record", "--machine", machine, "-o", str(file)]) == 0
    assert load_machine(str(file)).inventory == load_machine(machine).inventory


def test_a_file_that_ends_in_yaml_is_yaml_in_kebab_case(tmp_path):
    file = tmp_path / "machine.yaml"
    assert run(["record", "--machine", "2xa100-40gb", "-o", str(file)]) == 0
    assert file.read_text().startswith("version: partage/v1\nkind: Machine\n")
    assert "\n  pci-device-id: " in file.read_text()
    assert load_machine(str(file)).inventory == load_machine("2xa100-40gb").inventory


def test_without_a_file_it_goes_to_standard_output(capsys):
    assert run(["record", "--machine", "l4"]) == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 1


def test_a_place_that_cannot_be_written_is_an_input_error(capsys):
    assert run(["record", "--machine", "l4", "-o", "/no/such/folder/machine.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err
