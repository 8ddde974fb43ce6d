"""What crosses the helper's socket comes back unharmed, and nothing else is ever made of what arrives."""

from __future__ import annotations

import json
import math
import re
import sys
from types import FrameType
from typing import Any, cast, get_args

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import fields

from partage.codec.values import (
    CodecError,
    WrittenError,
    decode,
    encode,
    encode_replacing,
    from_error,
    from_plain,
    to_error,
    to_plain,
)
from partage.edges.hardware import frames
from partage.edges.hardware.port import Events
from partage.errors import GpuInUse, HardwareError, PartageError, Problem
from partage.model.geometry import Placement
from partage.model.gpu import (
    ComputeMode,
    Driver,
    EmptyInstance,
    Gpu,
    Inventory,
    Link,
    LinkPath,
    LostGpu,
    MigDevice,
    MigMode,
    NoDriver,
    RecoveryAction,
)
from partage.model.gpu_use import GpuMemory, GpuProcess, GpuUse, Processes, ProcessKind, UseKind
from partage.model.health import GpuCondition, HealthStatus, Xid
from partage.model.ids import GpuUuid
from partage.model.mps import (
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonSpec,
    DaemonState,
    MpsNamespace,
    MpsServer,
    ServerStatus,
)
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    Reset,
    SetComputeMode,
    SetMemoryLimit,
    SetMigMode,
    SetNamespace,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    TimeSlice,
    Verify,
)
from partage.model.strategy import Interval
from partage.units import MIB
from partage.values import Frozen
from tests.examples import examples

texts = st.text(max_size=12)
numbers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
placements = st.builds(Placement, start=st.integers(0, 20), size=st.integers(1, 20))
mig_devices = st.builds(
    MigDevice,
    texts,
    numbers,
    numbers,
    numbers,
    texts,
    placements,
    numbers,
    st.none() | numbers,
    st.none() | numbers,
)
gpus = st.builds(
    Gpu,
    index=numbers,
    uuid=texts,
    minor=numbers,
    product=texts,
    architecture=texts,
    compute_capability=st.tuples(numbers, numbers),
    memory_bytes=numbers,
    pci_bus_id=texts,
    pci_device_id=texts,
    numa_node=st.none() | numbers,
    mig_mode=st.none() | st.builds(MigMode, st.booleans(), st.booleans()),
    mig_devices=st.lists(mig_devices, max_size=2).map(tuple),
    empty_instances=st.lists(st.builds(EmptyInstance, numbers, texts, placements), max_size=2).map(tuple),
)
inventories = st.builds(
    Inventory,
    driver=st.builds(Driver, texts, texts) | st.builds(NoDriver, texts, texts, texts),
    gpus=st.lists(gpus, max_size=2).map(tuple),
    lost=st.lists(st.builds(LostGpu, numbers, st.none() | texts, st.none() | texts, texts), max_size=2).map(
        tuple
    ),
    links=st.lists(st.builds(Link, texts, texts, st.sampled_from(LinkPath), numbers), max_size=2).map(tuple),
    control_nodes=st.lists(texts, max_size=2).map(tuple),
    boot_id=texts,
    open_to_env=st.none() | st.booleans(),
    fabric_manager=st.none() | st.booleans(),
    virtual=st.none() | st.booleans(),
    simulated=st.booleans(),
)
conditions = st.builds(
    GpuCondition,
    gpu=texts,
    lost=st.none() | texts,
    recovery=st.none() | st.sampled_from(RecoveryAction),
    fabric_ok=st.none() | st.booleans(),
    mig_mode=st.booleans(),
    resets=st.none() | numbers,
)
events = st.builds(
    Events,
    xids=st.lists(st.builds(Xid, st.none() | texts, numbers, st.none() | numbers), max_size=3).map(tuple),
    changed=st.booleans(),
)
optional_numbers = st.none() | numbers
namespaces = st.builds(
    MpsNamespace,
    st.from_regex(r"share[0-9]{1,2}", fullmatch=True),
    st.none() | st.integers(1, 2**20).map(lambda mib: mib * MIB),
    st.none() | st.integers(1, 100),
)
specs = st.builds(
    DaemonSpec,
    texts,
    st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    st.none() | st.integers(1, 2**20).map(lambda mib: mib * MIB),
    st.none() | st.integers(1, 100),
    st.none() | st.booleans(),
    st.lists(namespaces, max_size=2, unique_by=lambda one: one.name).map(tuple),
)
daemons = st.builds(
    DaemonState,
    texts,
    texts,
    st.sampled_from(DaemonPhase),
    optional_numbers,
    st.lists(
        st.builds(
            MpsServer,
            numbers,
            optional_numbers,
            st.sampled_from(ServerStatus),
            st.lists(
                st.builds(ConnectedClient, numbers, optional_numbers, optional_numbers, texts), max_size=2
            ).map(tuple),
            texts,
        ),
        max_size=2,
    ).map(tuple),
    st.builds(ClientLimits, optional_numbers, optional_numbers, st.lists(namespaces, max_size=2).map(tuple)),
    st.booleans(),
    texts,
)
steps = st.one_of(
    st.builds(SetMigMode, texts, st.booleans()),
    st.builds(
        Reset,
        st.lists(texts, max_size=3).map(tuple),
        st.lists(texts, max_size=3).map(tuple),
        st.none() | st.booleans(),
    ),
    st.builds(
        DestroyCompute, texts, texts, placements, texts, optional_numbers, optional_numbers, uuid=texts
    ),
    st.builds(DestroyInstance, texts, texts, placements, optional_numbers),
    st.builds(CreateInstance, texts, texts, placements),
    st.builds(CreateCompute, texts, texts, placements, texts),
    st.builds(Verify, texts, st.booleans(), st.lists(texts, max_size=3).map(tuple)),
    st.builds(SetComputeMode, texts, st.sampled_from(ComputeMode), st.sampled_from(ComputeMode)),
    st.builds(SetTimeSlice, texts, st.sampled_from(Interval), st.sampled_from(Interval)),
    st.builds(EndProcess, texts, numbers, numbers, texts),
    st.builds(StartDaemon, texts, specs),
    st.builds(StopDaemon, texts, texts, st.none() | specs),
    st.builds(EndClient, texts, texts, numbers, numbers),
    st.builds(SetMemoryLimit, texts, texts, numbers),
    st.builds(SetNamespace, texts, texts, st.builds(MpsNamespace, texts, numbers, numbers)),
)
slices = st.builds(TimeSlice, texts, st.none() | st.sampled_from(Interval), texts)
made = st.none() | st.builds(Created, numbers, optional_numbers, texts)
uses = st.builds(
    GpuUse,
    texts,
    st.sampled_from(UseKind),
    texts,
    optional_numbers,
    st.none() | texts,
    optional_numbers,
    optional_numbers,
)
processes = st.builds(
    Processes,
    st.lists(
        st.builds(
            GpuProcess,
            texts,
            numbers,
            optional_numbers,
            st.sampled_from(ProcessKind),
            st.none() | texts,
            optional_numbers,
            optional_numbers,
            texts,
            st.lists(texts, max_size=2).map(tuple),
            optional_numbers,
            optional_numbers,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(GpuMemory, texts, optional_numbers), max_size=2).map(tuple),
    texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def through_the_wire(data: bytes) -> bytes:
    return frames.unpack_message(
        frames.HelperAnswer, frames.pack_message(frames.HelperAnswer(1, Raw(data)))[4:]
    ).result


@given(inventories)
def test_an_inventory_crosses_unharmed(inventory: Inventory) -> None:
    assert decode(Inventory, through_the_wire(encode(inventory))) == inventory


@given(st.lists(conditions, max_size=3).map(tuple))
def test_conditions_cross_unharmed(values: tuple[GpuCondition, ...]) -> None:
    assert decode(tuple[GpuCondition, ...], through_the_wire(encode(values))) == values


@given(events)
def test_events_cross_unharmed(value: Events) -> None:
    assert decode(Events, through_the_wire(encode(value))) == value


ANY_STEP = cast("type[Step]", Step)
ANY_MADE = cast("type[Created | None]", Created | None)


@given(steps)
def test_every_act_crosses_unharmed(step: Step) -> None:
    assert decode(ANY_STEP, through_the_wire(encode(step))) == step


@given(daemons)
def test_every_state_of_a_daemon_crosses_unharmed(state: DaemonState) -> None:
    assert decode(DaemonState, through_the_wire(encode(state))) == state


FIRST = settings(max_examples=examples(2000), phases=[Phase.generate])
"""The first example found is as good as the simplest one."""


def test_every_act_there_is_was_drawn() -> None:
    drawn = {
        type(find(steps, lambda step, kind=kind: isinstance(step, kind), settings=FIRST))  # type: ignore[misc]
        for kind in get_args(Step)
    }
    assert drawn == set(get_args(Step))


@given(made)
def test_what_a_creation_brought_crosses_unharmed(value: Created | None) -> None:
    assert decode(ANY_MADE, through_the_wire(encode(value))) == value


@given(st.lists(uses, max_size=3).map(tuple))
def test_who_uses_what_crosses_unharmed(value: tuple[GpuUse, ...]) -> None:
    crossed = decode(tuple[GpuUse, ...], through_the_wire(encode(value)))
    assert crossed == value
    assert all(type(use.kind) is UseKind for use in crossed)


@given(processes)
def test_processes_cross_unharmed(value: Processes) -> None:
    assert decode(Processes, through_the_wire(encode(value))) == value


@given(st.lists(slices, max_size=3).map(tuple))
def test_time_slices_cross_unharmed(value: tuple[TimeSlice, ...]) -> None:
    assert decode(tuple[TimeSlice, ...], through_the_wire(encode(value))) == value


@given(st.lists(texts, max_size=3).map(tuple))
def test_who_is_in_the_way_crosses_with_the_error(names: tuple[str, ...]) -> None:
    error = over_and_back(GpuInUse("it is in use", uses=names))
    assert isinstance(error, GpuInUse)
    assert error.uses == names


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"type": "gpu-use"},
        {"type": "set-mig-mode", "gpu": "x"},
        {"type": "set-mig-mode", "gpu": "x", "enabled": 1},
        {"type": "set-mig-mode", "gpu": "x", "enabled": True, "force": True},
        {"type": "create-instance", "gpu": "x", "profile": "1g.10gb", "placement": None},
        {"type": "reset", "gpus": "all", "pending": [], "reboot": None},
        {"type": "set-compute-mode", "gpu": "x", "mode": 4, "before": 0},
        {"type": "set-compute-mode", "gpu": "x", "mode": 3},
        {"type": "set-time-slice", "gpu": "x", "interval": "ages", "before": "default"},
        {"type": "end-process", "gpu": "x", "pid": "1", "start": 1, "container": ""},
    ],
)
def test_what_is_no_act_is_refused(wrong: Any) -> None:
    with pytest.raises(CodecError):
        decode(ANY_STEP, encode(wrong))
    with pytest.raises(CodecError):
        from_plain(ANY_STEP, wrong)


@given(json_values)
def test_whatever_arrives_is_a_value_or_a_codec_error(data: Any) -> None:
    for kind in (Inventory, Events, tuple[GpuCondition, ...], tuple[GpuUse, ...], Processes, ANY_STEP):
        try:
            value = decode(kind, encode(data))
        except CodecError:
            continue
        assert decode(kind, encode(value)) == value
        written = json.loads(encode(value))
        assert not isinstance(data, dict) or data.items() <= written.items()


@given(inventories, st.data())
def test_one_wrong_field_is_refused(inventory: Inventory, data: st.DataObject) -> None:
    plain = json.loads(encode(inventory))
    name = data.draw(st.sampled_from([field.encode_name for field in fields(inventory)]))
    plain[name] = data.draw(st.sampled_from([1.5, {"type": "gpu"}, [[]]]))
    with pytest.raises(CodecError, match=re.escape(f"`$.{name}")):
        decode(Inventory, encode(plain))


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0},
        {"start": 0, "size": 1, "more": 1},
        {"start": 0, "size": 0},
        {"start": True, "size": 1},
        {"start": 0.0, "size": 1},
        {"start": "0", "size": 1},
        [],
        None,
    ],
)
def test_a_placement_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(CodecError):
        decode(Placement, encode(wrong))


def test_an_unknown_key_is_named_with_its_place_or_passed_over() -> None:
    plain = to_plain(Inventory(Driver("1", "1")))
    plain["driver"]["colour"] = "red"
    for read, data in ((from_plain, plain), (decode, encode(plain))):
        with pytest.raises(CodecError, match=r"unknown field 'colour' - at `\$\.driver`"):
            read(Inventory, data)
        assert read(Inventory, data, strict=False) == Inventory(Driver("1", "1"))


def test_the_order_of_keys_and_blanks_do_not_matter() -> None:
    assert decode(Placement, b'{ "size": 2, "start": 1 }') == Placement(1, 2)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("write", [encode, to_plain])
def test_a_number_that_json_lacks_is_not_written(write: Any, number: float) -> None:
    """msgspec alone writes null."""
    for value, place in (
        (number, "$"),
        ([None, number], "$[1]"),
        ({"a": (1.0, number)}, "$.a[1]"),
        (HealthStatus(since_s=number), "$.since_s"),
    ):
        with pytest.raises(CodecError, match=re.escape(f"at `{place}`")):
            write(value)


def test_text_that_is_not_unicode_is_not_written() -> None:
    with pytest.raises(CodecError):
        encode(Driver("\udc80", ""))


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b"9" * 10_000, b'"\xff"', b'"\\udc80"', b"NaN", b"1e400"]
)
def test_bytes_that_are_meant_to_hurt_are_a_codec_error(data: bytes) -> None:
    for kind in (Inventory, Any):
        with pytest.raises(CodecError):
            decode(kind, data)


def leaves(kind: type[PartageError]) -> list[type[PartageError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


def over_and_back(error: PartageError) -> PartageError:
    return to_error(decode(WrittenError, through_the_wire(encode(from_error(error)))))


@pytest.mark.parametrize(
    "kind", [kind for kind in leaves(PartageError)[1:] if kind.__module__ == PartageError.__module__]
)
def test_every_error_crosses_as_itself(kind: type[PartageError]) -> None:
    problems = (Problem("a", "b", "warning", "c", "d"), Problem("", "", "error", "e"))
    back = over_and_back(kind(problems))
    assert type(back) is kind
    assert back.problems == problems


def test_an_error_of_another_module_becomes_the_nearest_that_crosses() -> None:
    class Special(HardwareError):
        pass

    assert type(over_and_back(Special("it failed"))) is HardwareError
    with pytest.raises(CodecError):
        to_error(WrittenError("Special", (PROBLEM,)))


PROBLEM = Problem("", "", "error", "m")


@pytest.mark.parametrize("name", ["BaseException", "PartageError", "SystemExit", ""])
def test_no_other_class_is_ever_made(name: str) -> None:
    with pytest.raises(CodecError):
        to_error(WrittenError(name, (PROBLEM,)))


@given(json_values)
def test_whatever_arrives_as_an_error_is_one_or_a_codec_error(data: Any) -> None:
    problem = to_plain(PROBLEM)
    for wrong in (
        data,
        {"type": "GpuLost", "problems": data, "uses": []},
        {"type": data, "problems": [], "uses": []},
        {"type": data, "problems": [problem], "uses": []},
    ):
        with pytest.raises(CodecError):
            to_error(decode(WrittenError, encode(wrong)))


@given(st.binary(max_size=64))
def test_whatever_arrives_as_a_message_is_one_or_a_frame_error(body: bytes) -> None:
    for kind in (frames.HelperRequest, frames.HelperAnswer, dict):
        try:
            frames.unpack_message(kind, body)
        except frames.FrameError:
            continue
        assert isinstance(json.loads(body), dict)


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b'{"a":' * 10_000, b"9" * 5000, b'{"a": NaN}', b"\xff", b"[]"]
)
def test_json_that_is_meant_to_hurt_is_a_frame_error(body: bytes) -> None:
    for kind in (frames.HelperRequest, frames.HelperAnswer, dict):
        with pytest.raises(frames.FrameError):
            frames.unpack_message(kind, body)


class Quoting(Frozen):
    """A document that quotes a path, and holds another one."""

    path: str
    inner: Raw


def test_a_path_that_is_not_unicode_is_written_with_question_marks():
    value = Quoting("/a\udcffb/\u00e9", Raw(b'{"x":[1,null]}'))
    assert encode_replacing(value) == '{"path":"/a?b/\u00e9","inner":{"x":[1,null]}}'.encode()
    plain = Quoting("/a", Raw(b"{}"))
    assert encode_replacing(plain) == encode(plain)
    with pytest.raises(CodecError, match="finite"):
        encode_replacing([float("nan"), "\udcff"])


def test_what_a_message_carries_is_read_as_quickly_as_bytes() -> None:
    """A Raw is equal to no bytes: each answer of the helper was compared key by key, in Python."""
    content = encode(tuple(Xid(GpuUuid(f"GPU-{number}"), 79) for number in range(100)))

    def calls(data: bytes) -> int:
        counted = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            assert len(decode(tuple[Xid, ...], data)) == 100
        finally:
            sys.setprofile(before)
        return counted

    calls(content)  # the first one makes the decoder
    assert calls(Raw(content)) == calls(content)
