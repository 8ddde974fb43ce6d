"""``partage.guard.limit``, for people who like to call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import partage.guard
from partage.units import GIB, MIB
from tests.guard.pythons import DOUBLES, environment, mounted, said


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mounted(tmp_path_factory.mktemp("mount"))


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({}, ValueError, "give one of fraction and bytes"),
        ({"fraction": 0.5, "bytes": GIB}, ValueError, "give one of fraction and bytes"),
        ({"fraction": 0}, ValueError, "above 0 and at most 1, not 0"),
        ({"fraction": 1.01}, ValueError, "above 0 and at most 1, not 1.01"),
        ({"fraction": -0.5}, ValueError, "above 0 and at most 1, not -0.5"),
        ({"fraction": float("nan")}, ValueError, "above 0 and at most 1, not nan"),
        ({"fraction": "half"}, TypeError, "fraction is a number, not 'half'"),
        ({"fraction": True}, TypeError, "fraction is a number, not True"),
        ({"bytes": 0}, ValueError, "at least 1 MiB"),
        ({"bytes": -1}, ValueError, "at least 1 MiB"),
        ({"bytes": 8}, ValueError, "at least 1 MiB"),
        ({"bytes": 1e9}, TypeError, "bytes is a whole number, not 1000000000.0"),
        ({"bytes": "8Gi"}, TypeError, "bytes is a whole number, not '8Gi'"),
    ],
)
def test_nonsense_is_refused_in_words(wanted: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        partage.guard.limit(**wanted)


def _program(code: str, *path: Path | str, **more: str) -> Any:
    env = environment(*path, DOUBLES, TORCH_DOUBLE="81920", **more)
    for name in [name for name in env if more.get("ALONE") and name.startswith("PARTAGE_")]:
        del env[name]
    return said(["-c", code + "\nimport json; print(json.dumps(answer))"], env)


@pytest.mark.parametrize(
    ("wanted", "fraction"), [("fraction=0.25", 0.25), (f"bytes={8 * GIB}", 0.1), (f"bytes={90 * GIB}", 1.0)]
)
def test_it_caps_exactly_what_is_asked_for_with_no_guard_and_no_share(wanted: str, fraction: float) -> None:
    """Before the import, after it, and after CUDA was initialised."""
    call = f"from partage.guard import limit; limit({wanted})\n"
    use = "torch.cuda._lazy_init()\n"
    for code in (f"{call}import torch\n{use}", f"import torch\n{call}{use}", f"import torch\n{use}{call}"):
        assert _program(code + "answer = torch.cuda.calls", ALONE="1")[-1] == ["fraction", fraction, 0]


def test_it_is_importable_from_the_mount_where_partage_is_not_installed(guard: Path) -> None:
    code = (
        "import os, sys\n"
        "sys.path = [place for place in sys.path if not os.path.isdir(place + '/partage/model')]\n"
        "import partage.guard; partage.guard.limit(fraction=0.5)\n"
        "answer = partage.guard.__file__"
    )
    assert _program(code, guard) == str(guard / "partage" / "guard.py")


def test_a_call_replaces_what_the_share_set(guard: Path) -> None:
    code = (
        "from partage_guard import limit; import torch; torch.cuda._lazy_init(); answer = limit(fraction=0.5)"
    )
    assert _program(code, guard) == {"torch": "cuda:0 0.5000"}
    code = "from partage_guard import limit; limit(fraction=0.5); import torch; torch.cuda._lazy_init()\n"
    assert _program(code + "answer = torch.cuda.calls", guard)[1:] == [["fraction", 0.5, 0]]


def test_a_call_replaces_what_the_environment_says(guard: Path) -> None:
    code = "from partage_guard import limit; limit(bytes=8 << 30); import cupy; answer = cupy.pool_limit"
    assert _program(code, guard, CUPY_GPU_MEMORY_LIMIT="50%") == str(8 * GIB)
    code = "from partage_guard import limit; limit(fraction=.1); import jaxlib.xla_client as x\n"
    code += "answer = x.generate_pjrt_gpu_plugin_options()['memory_fraction']"
    assert _program(code, guard, XLA_CLIENT_MEM_FRACTION="0.7") == 0.1


def test_a_fraction_needs_no_size_where_the_framework_takes_fractions(guard: Path) -> None:
    code = "from partage.guard import limit; limit(fraction=.4); import cupy; answer = cupy.pool_limit"
    assert _program(code, ALONE="1") == "40%"


def test_a_pool_that_cupy_has_already_is_told() -> None:
    for wanted, told in (("fraction=0.4", [None, 0.4]), (f"bytes={GIB}", [GIB, None])):
        code = f"import cupy; from partage.guard import limit; limit({wanted}); answer = cupy.set_limits"
        assert _program(code, ALONE="1") == [told]


def test_too_late_is_said(guard: Path) -> None:
    code = "import tensorflow.python.eager.context as c; c._context.ensure_initialized()\n"
    code += "from partage.guard import limit; answer = limit(fraction=.5)"
    assert _program(code, guard) == {"tensorflow": "too late: TensorFlow has initialised its devices already"}


def test_tensorflow_is_capped_by_a_second_call_not_by_the_first(guard: Path) -> None:
    code = "import tensorflow.python.eager.context as c; from partage_guard import limit\n"
    code += "limit(bytes=1 << 30); limit(bytes=2 << 30); c._context.ensure_initialized()\n"
    code += "answer = [v.memory_limit for l in c._context.logical.values() for v in l]"
    assert _program(code, guard) == [2 * GIB // MIB] * 2
