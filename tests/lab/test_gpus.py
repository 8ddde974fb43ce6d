"""Which GPU an experiment uses, and where the guard is."""

import pytest

from partage.errors import InputError, Unsatisfiable
from partage.lab.gpus import find_gpu, guard_directory
from tests.answers.nodes import gpu
from tests.answers.nodes import node as inventory_of


def test_a_gpu_is_chosen_by_index_or_uuid_and_is_the_first_otherwise():
    inventory = inventory_of(gpu(0), gpu(2))
    assert find_gpu(inventory, None).index == 0
    assert find_gpu(inventory, "2").index == 2
    assert find_gpu(inventory, gpu(2).uuid).index == 2
    with pytest.raises(InputError, match="GPUs that answer: 0, 2"):
        find_gpu(inventory, "1")
    with pytest.raises(Unsatisfiable):
        find_gpu(inventory_of(), None)


def test_the_guard_is_found_where_it_is_installed():
    directory = guard_directory()
    assert directory is not None
    assert (directory / "sitecustomize.py").is_file()
