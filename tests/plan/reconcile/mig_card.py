"""A GPU under MIG that does what steps say, and refuses what hardware refuses. No code of the planner."""

from __future__ import annotations

from itertools import count

from msgspec.structs import replace

from partage.edges.files.catalogue import load_catalogue
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import EmptyInstance, Gpu, MigDevice, MigMode
from partage.model.ids import GpuUuid, MigUuid, PciBusId
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Verify,
)


def model_of(model_id):
    model = load_catalogue().by_id(model_id)
    assert model is not None
    return model


def geometry(model_id):
    geometry = model_of(model_id).geometry
    assert geometry is not None
    return geometry


class Card:
    """mode: current, pending. instances: GI id to [profile, placement, {CI id: (profile, UUID)}]."""

    def __init__(self, model_id, index=0, mode=(True, True), product=None):
        model = model_of(model_id)
        self.geometry = geometry(model_id)
        self.resets = model.mig_needs_reset
        self.mode = mode
        self.instances = {}
        self.busy = set()  # UUIDs of MIG devices
        self.in_use = False  # the GPU as a whole
        self._last_id = 0  # a number, which can be copied: from Python 3.14 on, a counter of itertools cannot
        self._gpu = Gpu(
            index=index,
            uuid=GpuUuid(f"GPU-{index}"),
            minor=index,
            product=product or (*model.products, model_id)[0],
            architecture=model.architecture,
            compute_capability=model.compute_capability,
            memory_bytes=model.memory_bytes,
            pci_bus_id=PciBusId(f"0000:0{index}:00.0"),
            pci_device_id=model.pci_device_ids[0],
        )

    def live(self, profile, start, computes=None):
        """Put a GPU instance there, with the compute instances named, or one of full size."""
        spec = self.geometry.spec(MigProfile.parse(profile))
        gi_id = self._instance(profile, Placement(start, spec.size))
        for name in [profile] if computes is None else computes:
            self._compute(gi_id, name)
        return self

    def gpu(self):
        flat = [
            (gi_id, placement, ci_id, name, uuid)
            for gi_id, (_, placement, computes) in self.instances.items()
            for ci_id, (name, uuid) in computes.items()
        ]
        devices = tuple(
            MigDevice(uuid, index, gi_id, ci_id, name, placement, 1)
            for index, (gi_id, placement, ci_id, name, uuid) in enumerate(flat)
        )
        empty = tuple(
            EmptyInstance(gi_id, name, placement)
            for gi_id, (name, placement, computes) in self.instances.items()
            if not computes
        )
        mode = MigMode(*self.mode)
        return replace(self._gpu, mig_mode=mode, mig_devices=devices, empty_instances=empty)

    def does(self, step):
        match step:
            case SetMigMode(_, enabled):
                assert not self.in_use, "in use"
                assert enabled or not self.instances, "instances live"
                assert self.mode != (enabled, enabled), "nothing to change"
                self.mode = (self.mode[0] if self.resets else enabled, enabled)
            case Reset():
                assert not self.in_use, "in use"
                assert not self.busy, "in use"
                self.mode = (self.mode[1], self.mode[1])
                self.instances.clear()
            case DestroyCompute(_, _, placement, profile, gi_id, ci_id):
                at = self._at(placement)
                if gi_id is None:
                    gi_id, ci_id = at, self._one(at, profile)
                name, uuid = self.instances[gi_id][2][ci_id]
                assert (gi_id, name) == (at, profile)
                assert uuid not in self.busy, "in use"
                del self.instances[gi_id][2][ci_id]
            case DestroyInstance(_, profile, placement, gi_id):
                assert gi_id in (None, self._at(placement))
                found = self.instances[self._at(placement)]
                assert (found[0], found[1]) == (profile, placement)
                assert not found[2], "compute instances live"
                del self.instances[self._at(placement)]
            case CreateInstance(_, profile, placement):
                assert self.instances or not self.in_use, "in use"
                return Created(self._instance(profile, placement))
            case CreateCompute(_, instance, placement, profile):
                gi_id = self._at(placement)
                assert self.instances[gi_id][0] == instance
                return self._compute(gi_id, profile)
            case Verify(_, enabled, devices):
                assert self.mode == (enabled, enabled)
                assert self.content() == sorted(devices)
                assert all(computes for _, _, computes in self.instances.values()), "leaked"
        return None

    def content(self):
        """``profile@start`` of every MIG device."""
        return sorted(
            f"{name}@{placement.start}"
            for _, placement, computes in self.instances.values()
            for name, _ in computes.values()
        )

    def _at(self, placement):
        return next(gi_id for gi_id, one in self.instances.items() if one[1] == placement)

    def _one(self, gi_id, profile):
        return next(ci_id for ci_id, (name, _) in self.instances[gi_id][2].items() if name == profile)

    def _next_id(self):
        self._last_id += 1
        return self._last_id

    def _instance(self, profile, placement):
        assert self.mode[0], "MIG mode is off"
        specs = {str(spec.profile): spec for spec in self.geometry.profiles}
        spec = specs[profile]
        names = [one[0] for one in self.instances.values()]
        assert placement.start in spec.starts, "no such place"
        assert placement.size == spec.size, "no such place"
        assert not any(one[1].overlaps(placement) for one in self.instances.values()), "overlap"
        assert names.count(profile) < spec.max_count, "too many"
        slices = sum(specs[name].compute_slices for name in names) + spec.compute_slices
        assert slices <= self.geometry.compute_slices, "no compute slices"
        gi_id = self._next_id()
        self.instances[gi_id] = [profile, placement, {}]
        return gi_id

    def _compute(self, gi_id, profile):
        name, _, computes = self.instances[gi_id]
        whole, wanted = MigProfile.parse(name), MigProfile.parse(profile)
        assert wanted.gpu_instance == whole
        used = sum(MigProfile.parse(one).compute_slices for one, _ in computes.values())
        assert used + wanted.compute_slices <= whole.gpu_slices, "no room in the GPU instance"
        ci_id = next(number for number in count() if number not in computes)
        uuid = MigUuid(f"MIG-{self._gpu.index}-{self._next_id()}")
        computes[ci_id] = (profile, uuid)
        return Created(gi_id, ci_id, uuid)
