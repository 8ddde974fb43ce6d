"""No input whatever gives anything but a policy or an InputError, and no policy breaks what comes after."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import LoadedPolicy, parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Gpu, Inventory, LostGpu, MigMode
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from tests.edges.files.policy_texts import ALL, STRANGERS, places, removed, replaced
from tests.examples import examples, some, variants
from tests.plan.offers import gpu, node

_PLAIN = replace(gpu(5), product="NVIDIA L40S", mig_mode=None, pci_device_id="0x26b910de")
_EMPTY_MIG = replace(gpu(4), mig_mode=MigMode(current=True, pending=True))
NODES: tuple[Inventory, ...] = (
    node(),
    node(*(gpu(index) for index in range(8))),
    node(gpu(0), gpu(1, migs=3), gpu(2, migs=3), _EMPTY_MIG, _PLAIN),
    replace(node(gpu(1, migs=2)), lost=(LostGpu(0, None, None, "gone"),)),
)


def judge(
    text: str | bytes, config: str | None = None, env: dict[str, str] | None = None
) -> LoadedPolicy | None:
    """Read, and lay over every node. Both may refuse with reasons, and do nothing else."""
    try:
        loaded = parse_policy(text, "p", config, env)
    except InputError as refused:
        _has_reasons(refused)
        return None
    assert all(warning.severity == "warning" for warning in loaded.warnings)
    for inventory in NODES:
        try:
            assignment = assign(loaded.policy, inventory, geometry_of)
            advertise(assignment, inventory, loaded.policy)
        except (InputError, Unsatisfiable) as refused:
            _has_reasons(refused)
        else:
            _is_sound(assignment.targets, inventory)
    return loaded


def _has_reasons(refused: InputError | Unsatisfiable) -> None:
    errors = [problem for problem in refused.problems if problem.severity == "error"]
    if not errors or not all(problem.message for problem in refused.problems):
        raise AssertionError(refused.problems)


def _is_sound(targets: Any, inventory: Inventory) -> None:
    devices = [(target.gpu.uuid, target.mig) for target in targets]
    assert len({(uuid, repr(mig), n) for n, (uuid, mig) in enumerate(devices)}) == len(devices)
    whole = [uuid for uuid, mig in devices if mig is None]
    assert len(whole) == len(set(whole))
    assert all(isinstance(target.gpu, Gpu) and inventory.gpu(target.gpu.uuid) for target in targets)


PLACES = [(name, path) for name, document in ALL.items() for path in places(document)]


@pytest.mark.parametrize("name", ALL)
def test_the_texts_that_are_broken_here_are_valid(name: str) -> None:
    assert judge(json.dumps(ALL[name]), "mixed" if name == "mig-parted" else None) is not None


@pytest.mark.parametrize(
    ("name", "path"), variants(PLACES, 3), ids=[f"{name}-{path}" for name, path in PLACES]
)
def test_a_stranger_at_any_key_gives_a_policy_or_reasons(name: str, path: tuple[str | int, ...]) -> None:
    config = "mixed" if name == "mig-parted" else None
    for stranger in some(STRANGERS, PLACES.index((name, path))):
        judge(json.dumps(replaced(ALL[name], path, stranger)), config)
    if path:
        judge(json.dumps(removed(ALL[name], path)), config)


_WORDS = st.sampled_from(
    sorted({str(key) for document in ALL.values() for path in places(document) for key in path})
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | _WORDS
    | st.sampled_from(
        ["all", "rest", "1g.10gb", "7g.80gb", "8Gi", "50%", "v1", "partage/v1", "gpu", "GPU-x", "A100*"]
    )
)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_WORDS | st.text(max_size=6), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(_DOCUMENTS, st.sampled_from(["partage/v1", "v1", None]))
@settings(max_examples=examples(300), deadline=None)
def test_arbitrary_documents(document: Any, version: str | None) -> None:
    if isinstance(document, dict) and version is not None:
        document = {**document, "version": version}
    judge(json.dumps(document))


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_valid_documents_broken_in_a_few_places(data: st.DataObject) -> None:
    document: Any = ALL[data.draw(st.sampled_from(sorted(ALL)))]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, path, data.draw(_DOCUMENTS))
    judge(json.dumps(document), data.draw(st.none() | st.sampled_from(["mixed", "all-disabled"])))


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_valid_texts_with_a_few_characters_changed(data: st.DataObject) -> None:
    text = yaml.safe_dump(ALL[data.draw(st.sampled_from(sorted(ALL)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    judge(text.encode("utf-8", "surrogatepass"), "mixed" if "mig-configs" in text else None)


@given(st.text(max_size=300), st.sampled_from(["", "version: v1\n", "version: partage/v1\n"]))
@settings(max_examples=examples(200), deadline=None)
def test_arbitrary_text(text: str, start: str) -> None:
    judge((start + text).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=300))
@settings(max_examples=examples(100), deadline=None)
def test_arbitrary_bytes(data: bytes) -> None:
    judge(data)


@given(
    st.dictionaries(
        st.sampled_from(
            ["MIG_STRATEGY", "DEVICE_LIST_STRATEGY", "FAIL_ON_INIT_ERROR", "IMEX_CHANNEL_IDS", "MPS_ROOT"]
        ),
        st.text(max_size=10) | st.sampled_from(["single", "mixed", "true", "0", "envvar,cdi-cri"]),
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_arbitrary_variables(env: dict[str, str]) -> None:
    judge(json.dumps(ALL["nvidia"]), env=env)


def test_no_name_of_a_file_or_a_configuration_gives_a_traceback() -> None:
    for name in ("", "\0", "x" * 5000, "\ud800"):
        with contextlib.suppress(InputError):
            parse_policy("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}", name, name)


def _sharing(devices: Any, count: int) -> dict[str, Any]:
    rows = [{"name": "gpu", "replicas": 2, "devices": devices(n)} for n in range(count)]
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": rows}}}


_LARGE: dict[str, Any] = {
    "unknown keys": {"version": "partage/v1", **{f"replicas{n}": 1 for n in range(14_000)}},
    "unknown keys of NVIDIA's": {"version": "v1", **{f"flag{n}": 1 for n in range(14_000)}},
    "long unknown keys": {"version": "v1", **{f"{n:05}" + "renameByDefault" * 500: 1 for n in range(120)}},
    "indexes": _sharing(lambda n: [n * 60 + m for m in range(50)], 500),
    "UUIDs": _sharing(lambda n: [f"GPU-{n}-{m}" for m in range(50)], 500),
    "one selector": {
        "version": "partage/v1",
        "gpus": [{"select": {"index": list(range(29_000))}, "exclusive": {}}],
    },
    "wrong indexes": {"version": "partage/v1", "gpus": [{"select": {"index": ["x"] * 29_000}, "mps": {}}]},
    "layouts": {
        "version": "partage/v1",
        "gpus": [{"select": {"index": n}, "mig": {"layout": ["1g.10gb"] * 50}} for n in range(500)],
    },
    "clients": {
        "version": "partage/v1",
        "gpus": [{"select": {"index": n}, "mps": {"clients": [{"name": "c"}] * 25}} for n in range(500)],
    },
    "configurations": {
        "version": "v1",
        "mig-configs": {
            f"c{n}": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 512}}]
            for n in range(3_700)
        },
    },
}


@pytest.mark.parametrize("name", _LARGE)
def test_a_large_policy_is_judged_in_half_a_second(name: str) -> None:
    """CPU time of the best of three: other tests share the machine."""
    text = json.dumps(_LARGE[name])

    def once() -> float:
        began = time.process_time()
        with contextlib.suppress(InputError):
            parse_policy(text, "p", "c0" if name == "configurations" else None)
        return time.process_time() - began

    assert min(once() for _ in range(3)) < 0.5
