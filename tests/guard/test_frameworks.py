"""What each framework is told, when, and in which order; the frameworks are recording doubles.

Expected: the share less 512 MiB for the context (1 GiB from 140 multiprocessors on), at least half of it.
"""

from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

import pytest

from partage.units import GIB, MIB
from tests.guard.pythons import DOUBLES, environment, mounted, run, said

_ALLOWED = 20 * GIB - 512 * MIB
"""Of the share that SHARE tells of."""


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mounted(tmp_path_factory.mktemp("mount"))


def _program(guard: Path, code: str, *path: Path, **more: str) -> Any:
    """What a program prints of ``answer``, and of what was applied."""
    ending = "\nimport json, os; print(json.dumps([answer, os.environ['PARTAGE_GUARD_APPLIED']]))"
    env = environment(guard, *(path or (DOUBLES,)), **{"TORCH_DOUBLE": "81920", **more})
    return said(["-c", code + ending], env)


# --- PyTorch -------------------------------------------------------------------------------------

_USE = "import torch; torch.cuda._lazy_init(); answer = torch.cuda.calls"


def _fraction(bytes_: int, total: int = 80 * GIB) -> float:
    return round(bytes_ / total, 6)


def test_importing_torch_touches_no_cuda(guard: Path) -> None:
    assert _program(guard, "import torch; answer = torch.cuda.calls") == [[], "torch: waits for CUDA"]


def test_torch_is_capped_when_it_initialises_cuda(guard: Path) -> None:
    calls, applied = _program(guard, _USE)
    assert calls == [["init"], ["fraction", _fraction(_ALLOWED), 0]]
    assert applied == "torch: cuda:0 0.2437"


def test_a_program_that_sets_its_own_fraction_has_the_last_word(guard: Path) -> None:
    code = "import torch; torch.cuda.set_per_process_memory_fraction(0.9); answer = torch.cuda.calls"
    calls, _ = _program(guard, code)
    assert [call[1] for call in calls if call[0] == "fraction"] == [_fraction(_ALLOWED), 0.9]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_fraction_in_torchs_own_variable_holds(guard: Path, name: str) -> None:
    conf = "expandable_segments:True,per_process_memory_fraction:0.7"
    assert _program(guard, _USE, **{name: conf}) == [[["init"]], f"torch: kept {name}={conf}"]


def test_other_words_in_torchs_variable_do_not_count_as_a_cap(guard: Path) -> None:
    _, applied = _program(guard, _USE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert applied == "torch: cuda:0 0.2437"


def test_many_multiprocessors_mean_a_larger_context(guard: Path) -> None:
    calls, _ = _program(guard, _USE, TORCH_DOUBLE_SMS="148")
    assert calls[-1] == ["fraction", _fraction(19 * GIB), 0]


def test_of_a_small_share_half_is_the_allocators(guard: Path) -> None:
    calls, _ = _program(guard, _USE, PARTAGE_MEMORY_BYTES=str(512 * MIB))
    assert calls[-1] == ["fraction", _fraction(256 * MIB), 0]


def test_several_processes_split_the_share(guard: Path) -> None:
    calls, _ = _program(guard, _USE, PARTAGE_GUARD_PROCESSES="4")
    assert calls[-1] == ["fraction", _fraction(5 * GIB - 512 * MIB), 0]


def test_a_whole_device_is_not_touched(guard: Path) -> None:
    """The driver's total is a little less than what the share says: still all of it."""
    whole = {"PARTAGE_MEMORY_BYTES": str(80 * GIB), "TORCH_DOUBLE": "81000"}
    assert _program(guard, _USE, **whole) == [[["init"]], "torch: cuda:0 the share is the whole device"]


def test_different_shares_find_their_devices_by_uuid(guard: Path) -> None:
    """PARTAGE_GPUS has its order, CUDA another; the device that was current stays so."""
    shares = {
        "PARTAGE_GPUS": "GPU-1,GPU-0",
        "PARTAGE_MEMORY_BYTES": f"{20 * GIB},{8 * GIB}",
        "PARTAGE_TOTAL_BYTES": f"{80 * GIB},{16 * GIB}",
        "TORCH_DOUBLE": "16384,81920",
    }
    calls, applied = _program(guard, _USE, **shares)
    assert calls == [
        ["init"],
        ["fraction", _fraction(8 * GIB - 512 * MIB, 16 * GIB), 0],
        ["fraction", _fraction(_ALLOWED), 1],
        ["device", 0],
    ]
    assert applied == "torch: cuda:0 0.4688, cuda:1 0.2437"


def test_devices_that_are_not_told_apart_get_the_smallest_share(guard: Path) -> None:
    shares = {"PARTAGE_GPUS": "GPU-x,GPU-y", "PARTAGE_MEMORY_BYTES": f"{20 * GIB},{8 * GIB}"}
    calls, _ = _program(guard, _USE, **shares)
    assert calls[-1] == ["fraction", _fraction(8 * GIB - 512 * MIB), 0]


def test_what_fails_inside_stays_inside(guard: Path) -> None:
    """SystemExit out of the driver's bindings, while PyTorch initialises CUDA."""
    fault = {"TORCH_DOUBLE_FAULT": "1"}
    assert _program(guard, _USE, **fault) == [
        [["init"]],
        "torch: failed: SystemExit: the double was told to fail",
    ]


@pytest.mark.parametrize("memory", ["many", "", "-5", "0", "1,x"])
def test_nonsense_leaves_torch_as_it_is_and_says_why(guard: Path, memory: str) -> None:
    calls, applied = _program(guard, _USE, PARTAGE_MEMORY_BYTES=memory)
    assert calls == [["init"]]
    assert applied == f"torch: PARTAGE_MEMORY_BYTES is {memory!r}, not a number above 0"


# --- JAX -----------------------------------------------------------------------------------------

_OPTIONS = (
    "import os, jaxlib.xla_client as x; answer = x.generate_pjrt_gpu_plugin_options().get('memory_fraction')"
)


def test_jax_gets_its_fraction_with_the_clients_options(guard: Path) -> None:
    assert _program(guard, _OPTIONS) == [0.2437, "jax: memory_fraction 0.2437"]


def test_the_environment_is_not_touched_for_jax(guard: Path) -> None:
    code = _OPTIONS + "; answer = [name for name in os.environ if name.startswith('XLA')]"
    assert _program(guard, code) == [[], "jax: memory_fraction 0.2437"]


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_fraction_that_the_user_sets_for_jax_holds_by_either_name(guard: Path, name: str) -> None:
    """Also one that is set after the import, which a variable of ours beside it would turn into an error."""
    assert _program(guard, _OPTIONS, **{name: ".5"}) == [0.5, "jax: kept memory_fraction 0.5"]
    late = _OPTIONS.replace("; answer", f"; os.environ[{name!r}] = '.6'; answer")
    assert _program(guard, late) == [0.6, "jax: kept memory_fraction 0.6"]


def test_an_allocator_that_knows_no_cap_is_named(guard: Path) -> None:
    _, applied = _program(guard, _OPTIONS, XLA_PYTHON_CLIENT_ALLOCATOR="platform")
    assert applied == "jax: memory_fraction 0.2437, which the allocator 'platform' ignores"


def test_without_the_devices_size_jax_is_left_alone(guard: Path) -> None:
    expected = [None, "jax: PARTAGE_TOTAL_BYTES does not say how large the device is"]
    assert _program(guard, _OPTIONS, PARTAGE_TOTAL_BYTES="") == expected


def test_of_several_devices_jax_gets_the_smallest_part(guard: Path) -> None:
    shares = {
        "PARTAGE_GPUS": "GPU-0,GPU-1",
        "PARTAGE_MEMORY_BYTES": f"{20 * GIB},{8 * GIB}",
        "PARTAGE_TOTAL_BYTES": f"{80 * GIB},{16 * GIB}",
    }
    assert _program(guard, _OPTIONS, **shares) == [0.2437, "jax: memory_fraction 0.2437"]


def test_an_old_jaxlib_reads_the_old_variable_which_is_lent_to_it(guard: Path) -> None:
    code = "import os, jaxlib.xla_client as x; x.make_gpu_client()\n"
    code += "answer = [x.read, 'XLA_PYTHON_CLIENT_MEM_FRACTION' in os.environ]"
    old = DOUBLES / "oldjax"
    applied = "jax: XLA_PYTHON_CLIENT_MEM_FRACTION=0.2437"
    assert _program(guard, code, old) == [[["0.2437"], False], applied]
    kept = [[["0.5"], True], "jax: kept XLA_PYTHON_CLIENT_MEM_FRACTION=0.5"]
    assert _program(guard, code, old, XLA_PYTHON_CLIENT_MEM_FRACTION="0.5") == kept


# --- TensorFlow ----------------------------------------------------------------------------------

_CONTEXT = "import os, tensorflow.python.eager.context as c; context = c._context\n"
_LIMITS = "answer = [[d.name, [v.memory_limit for v in l]] for d, l in context.logical.items()]"
_GPU = "/physical_device:GPU:"


def test_importing_tensorflow_lists_no_device(guard: Path) -> None:
    code = _CONTEXT + "answer = context.listed"
    assert _program(guard, code) == [0, "tensorflow: waits for its runtime"]


def test_tensorflow_gets_a_logical_device_on_each_gpu_before_its_runtime(guard: Path) -> None:
    expected = [[f"{_GPU}{index}", [_ALLOWED // MIB]] for index in (0, 1)]
    applied = f"tensorflow: GPU:0 {_ALLOWED // MIB} MiB, GPU:1 {_ALLOWED // MIB} MiB"
    code = _CONTEXT + "context.ensure_initialized(); context.ensure_initialized()\n" + _LIMITS
    assert _program(guard, code) == [expected, applied]


def test_a_gpu_that_the_program_configured_itself_is_left_alone(guard: Path) -> None:
    own = "gpu = context.list_physical_devices('GPU')[0]\n"
    own += "context.logical[gpu] = [c.LogicalDeviceConfiguration(77)]\n"
    answer, applied = _program(guard, _CONTEXT + own + "context.ensure_initialized()\n" + _LIMITS)
    assert answer[0] == [f"{_GPU}0", [77]]
    assert applied == f"tensorflow: GPU:0 kept as configured, GPU:1 {_ALLOWED // MIB} MiB"


def test_a_program_that_wants_memory_growth_still_has_it(guard: Path) -> None:
    own = "context.growth = {gpu: True for gpu in context.list_physical_devices('GPU')}\n"
    code = _CONTEXT + own + "context.ensure_initialized()\nanswer = os.environ['TF_FORCE_GPU_ALLOW_GROWTH']"
    answer, _ = _program(guard, code)
    assert answer == "true"


def test_tensorflows_own_method_is_back_after_its_one_run(guard: Path) -> None:
    code = _CONTEXT + "context.ensure_initialized(); answer = c.Context.ensure_initialized.__module__"
    answer, _ = _program(guard, code)
    assert answer == "tensorflow.python.eager.context"


# --- CuPy ----------------------------------------------------------------------------------------


def test_cupy_finds_its_limit_when_it_is_imported(guard: Path) -> None:
    applied = f"cupy: CUPY_GPU_MEMORY_LIMIT={_ALLOWED}"
    assert _program(guard, "import cupy; answer = cupy.pool_limit") == [str(_ALLOWED), applied]


def test_a_limit_that_the_user_sets_for_cupy_holds(guard: Path) -> None:
    expected = ["50%", "cupy: kept CUPY_GPU_MEMORY_LIMIT=50%"]
    assert _program(guard, "import cupy; answer = cupy.pool_limit", CUPY_GPU_MEMORY_LIMIT="50%") == expected


# --- the hook itself -----------------------------------------------------------------------------


def test_the_guard_imports_no_framework_by_itself(guard: Path) -> None:
    code = (
        "import sys; answer = sorted({'torch', 'jaxlib', 'tensorflow', 'cupy', 'typing'} & set(sys.modules))"
    )
    assert _program(guard, code) == [[], "ready"]


def test_an_imported_framework_looks_as_it_would_without_us(guard: Path) -> None:
    code = (
        "import copy, importlib, importlib.util, inspect, json, pickle, sys, torch.cuda as c\n"
        "spec, again = c.__spec__, importlib.util.find_spec('torch.cuda')\n"
        "before = type(spec.loader).__name__, c.__loader__ is spec.loader, spec.loader.name\n"
        "source = inspect.getsource(c._lazy_call)[:3], spec.loader.get_data(c.__file__)[:1].decode()\n"
        "picked = pickle.loads(pickle.dumps(c._lazy_call)) is c._lazy_call\n"
        "reloaded = importlib.reload(c) is c, type(c.__spec__.loader).__name__, len(c._queued_calls)\n"
        "print(json.dumps([before, again is spec, source, picked, reloaded]))\n"
    )
    env = {"TORCH_DOUBLE": "1"}
    with_us = said(["-c", code], environment(guard, DOUBLES, **env))
    alone = said(["-c", code], environment(DOUBLES, **env))
    assert with_us == alone


def test_looking_for_a_framework_is_not_importing_it(guard: Path) -> None:
    """A program that asks whether torch.cuda is there, and imports it later, is capped all the same."""
    code = (
        "import importlib.util as u; assert u.find_spec('torch.cuda').loader.get_code('torch.cuda')\n" + _USE
    )
    _, applied = _program(guard, code)
    assert applied == "torch: cuda:0 0.2437"


def test_a_framework_that_cannot_be_imported_fails_with_its_own_error(guard: Path, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    done = run(["-c", "import cupy"], environment(guard, tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: libcuda.so.1: cannot open"


def test_a_framework_that_is_not_installed_is_missed_as_always(guard: Path) -> None:
    done = run(["-c", "import cupy"], environment(guard))
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'cupy'"


def test_the_finder_goes_when_there_is_nothing_left_to_wait_for(guard: Path) -> None:
    code = (
        "import sys, torch, jaxlib.xla_client, tensorflow.python.eager.context, cupy\n"
        "answer = [type(finder).__name__ for finder in sys.meta_path if type(finder).__name__ == 'Finder']"
    )
    answer, applied = _program(guard, code)
    assert answer == []
    assert [part.partition(":")[0] for part in applied.split("; ")] == ["torch", "jax", "tensorflow", "cupy"]


def test_a_framework_that_a_pth_file_imported_before_us_is_capped(guard: Path, tmp_path: Path) -> None:
    """.pth files run before any sitecustomize."""
    venv.create(tmp_path / "venv", symlinks=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "early.pth").write_text(f"import sys; sys.path.insert(1, {str(DOUBLES)!r}); import torch\n")
    code = "import json, os, torch; torch.cuda._lazy_init()\n"
    code += "print(json.dumps(os.environ['PARTAGE_GUARD_APPLIED']))"
    env = environment(guard, TORCH_DOUBLE="81920")
    assert said(["-c", code], env, tmp_path / "venv" / "bin" / "python") == "torch: cuda:0 0.2437"


def test_fork_after_import_and_before_cuda_caps_the_child(guard: Path) -> None:
    code = (
        "import os, torch\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    torch.cuda._lazy_init()\n"
        "    os.write(writer, os.environ['PARTAGE_GUARD_APPLIED'].encode())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "answer = [torch.cuda.calls, os.read(reader, 99).decode()]\n"
    )
    assert _program(guard, code) == [[[], "torch: cuda:0 0.2437"], "torch: waits for CUDA"]
