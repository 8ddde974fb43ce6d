"""``partage record``."""

import json

import pytest

from partage.cli.main import run
from partage.sim.node.files.load import load_machine


@pytest.mark.parametrize("machine", ["8xa100-40gb+2xl4", "examples/07-mixed-node/machine.json"])
def test_what_is_recorded_is_the_same_machine(tmp_path, machine):
    file = tmp_path / "machine.json"
    assert run(["record", "--machine", machine, "--to", str(file)]) == 0
    assert load_machine(str(file)).inventory == load_machine(machine).inventory


def test_a_file_that_ends_in_yaml_is_yaml_in_kebab_case(tmp_path):
    file = tmp_path / "machine.yaml"
    assert run(["record", "--machine", "2xa100-40gb", "--to", str(file)]) == 0
    assert file.read_text().startswith("version: partage/v1\nkind: Machine\n")
    assert "\n  pci-device-id: " in file.read_text()
    assert load_machine(str(file)).inventory == load_machine("2xa100-40gb").inventory


def test_without_a_file_it_goes_to_standard_output(capsys):
    assert run(["record", "--machine", "l4"]) == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 1


def test_a_place_that_cannot_be_written_is_an_input_error(capsys):
    assert run(["record", "--machine", "l4", "--to", "/no/such/folder/machine.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("m.yaml", [], "driver:"),
        ("m.json", [], "{"),
        ("m.yaml", ["-o", "json"], "{"),
        ("m", ["-o", "yaml"], ""),
    ],
)
def test_the_files_name_says_the_format_unless_an_option_does(tmp_path, name, options, begins):
    file = tmp_path / name
    assert run(["record", "--machine", "l4", "--to", str(file), *options]) == 0
    assert file.read_text().startswith("{") == (begins == "{")
    assert load_machine(str(file)).inventory == load_machine("l4").inventory


def test_a_file_in_place_of_a_format_is_an_error_that_names_the_right_option(capsys):
    assert run(["record", "--machine", "l4", "-o", "node.yaml"]) == 2
    assert "--to node.yaml" in capsys.readouterr().err
