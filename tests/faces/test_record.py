"""``partage record``."""

import json

import pytest

from partage.faces.cli.main import run
from partage.sim.node.machine import load_machine


@pytest.mark.parametrize("machine", ["8xa100-40gb+2xl4", "examples/07-mixed-node/machine.json"])
def test_what_is_recorded_is_the_same_machine(tmp_path, machine):
    file = tmp_path / "machine.json"
    assert run(["record", "--machine", machine, "-o", str(file)]) == 0
    assert load_machine(str(file)).inventory == load_machine(machine).inventory


def test_without_a_file_it_goes_to_standard_output(capsys):
    assert run(["record", "--machine", "l4"]) == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 1


def test_a_place_that_cannot_be_written_is_an_input_error(capsys):
    assert run(["record", "--machine", "l4", "-o", "/no/such/folder/machine.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err
