"""GPU models that are known without a driver: names, memory, MIG geometry; and the MIG layouts that cloud
providers publish, with their names and their misprints.

The data is in ``catalogue/*.json``; each model names its sources. What the driver of a real GPU reports has
precedence. ``load_catalogue().models`` is the list of all models with their facts.

The layouts are in ``catalogue/providers.json`` as they were published. A row that its model cannot have
contains the layout that was meant in ``right``; every other row equals the layout that ``model.layout`` makes
of its name. The tests check this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec.json
from msgspec import Raw
from msgspec.structs import replace

from partage.errors import InputError
from partage.model.geometry import Engines, Geometry, GpuModel, MigProfile, MisprintedLayout, ProfileSpec
from partage.model.gpu import Gpu
from partage.units import GIB, MIB
from partage.values import Frozen

_FILE = Path(__file__).with_name("catalogue") / "providers.json"


class PublishedLayout(Frozen):
    """One layout. name: None for a layout without a name. listed: as published; right: the layout that was
    meant.
    """

    name: str | None
    listed: tuple[MigProfile, ...]
    right: tuple[MigProfile, ...]
    why: str = ""

    @property
    def wrong(self) -> bool:
        """The model cannot have the published layout."""
        return self.listed != self.right


class ProviderTable(Frozen):
    """The layouts that a provider publishes for one product. models: ids of the catalogue that it
    applies to.
    """

    provider: str
    title: str
    models: tuple[str, ...]
    source: str
    rows: tuple[PublishedLayout, ...]


@cache
def provider_tables() -> tuple[ProviderTable, ...]:
    """All tables; read once."""
    return tuple(
        ProviderTable(
            provider=table["provider"],
            title=table["title"],
            models=tuple(table["models"]),
            source=table["source"],
            rows=tuple(
                PublishedLayout(
                    name=row["name"],
                    listed=_profiles(row["listed"]),
                    right=_profiles(row.get("right", row["listed"])),
                    why=row.get("why", ""),
                )
                for row in table["rows"]
            ),
        )
        for table in json.loads(_FILE.read_text(encoding="utf-8"))
    )


def misprints_of(model_id: str) -> tuple[MisprintedLayout, ...]:
    """The wrong rows of all tables for one model."""
    return tuple(
        MisprintedLayout(f"{table.provider}'s table for the {table.title}", row.name, row.listed, row.right)
        for table in provider_tables()
        if model_id in table.models
        for row in table.rows
        if row.wrong
    )


def _profiles(counts: Mapping[str, int]) -> tuple[MigProfile, ...]:
    return tuple(MigProfile.parse(name) for name, count in counts.items() for _ in range(count))


FOLDER = Path(__file__).with_name("catalogue")
_MEMORY_TOLERANCE = 0.05
"""Allowed difference between a GPU's memory and its model's. Drivers reserve up to 2 %; the next larger model
with the same device id has 17 % more.
"""

ASK_THE_DRIVER = "only its driver knows its placements, and partage record writes them into a machine file"


class _MigFile(Frozen):
    """``mig.json``. Its models are read one at a time: at rest, a process keeps the memory that all rows take
    at once.
    """

    geometries: Mapping[str, Any]
    models: tuple[Raw, ...]


class Catalogue(Frozen):
    """All models, in the order of the files."""

    models: tuple[GpuModel, ...]

    def by_id(self, model_id: str) -> GpuModel | None:
        """The model with this id, in any case."""
        wanted = model_id.lower()
        return next((model for model in self.models if model.id == wanted), None)

    def by_product(self, product: str) -> tuple[GpuModel, str] | None:
        """The model, and NVML's spelling, for a product name. Case, vendor and separators are ignored."""
        wanted = _plain(product)
        return next(
            ((model, name) for model in self.models for name in model.products if _plain(name) == wanted),
            None,
        )

    def by_pci_device_id(self, pci_device_id: str) -> tuple[GpuModel, ...]:
        """The models with this device id, ``0x233010de``. Several models can share one (A2, A16)."""
        wanted = pci_device_id.lower()
        return tuple(model for model in self.models if wanted in model.pci_device_ids)

    def by_gpu(self, gpu: Gpu) -> GpuModel | None:
        """The model of a GPU: by device id, else by product; only if the memory agrees.

        Where several models share the device id, those with the GPU's product come first; of them, the one
        whose memory is nearest.
        """
        named = tuple(model for model in self.models if _plain(gpu.product) in map(_plain, model.products))
        models = self.by_pci_device_id(gpu.pci_device_id) or named
        agreeing = [model for model in models if _memory_agrees(model, gpu.memory_bytes)]
        return min(
            agreeing,
            key=lambda model: (model not in named, abs(model.memory_bytes - gpu.memory_bytes)),
            default=None,
        )

    def find(self, name: str) -> tuple[GpuModel, str] | None:
        """The model and the product for an id, a product name, or the beginning of one id (``b300``)."""
        model = self.by_id(name)
        if model is None and (named := self.by_product(name)):
            return named
        if model is None and len(begun := self._begun(name)) == 1:
            model = begun[0]
        return (model, (*model.products, model.id)[0]) if model else None

    def simulated_models(self) -> tuple[GpuModel, ...]:
        """The models that can be simulated: those with a product name. MIG layouts of one without placements
        cannot be planned; everything else can."""
        return tuple(model for model in self.models if model.products)

    def nearest(self, name: str) -> tuple[str, ...]:
        """Up to three ids or product names that are most similar to ``name``; those that begin with it come
        first.
        """
        import difflib

        spelled = {model.id: model.id for model in self.simulated_models()}
        for model in self.simulated_models():
            spelled |= {_plain(product): product for product in model.products if _plain(product) != model.id}
        wanted = _plain(name)
        prefixed = [key for key in spelled if wanted and key.startswith(wanted)]
        alike = difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.4)
        return tuple(spelled[key] for key in list(dict.fromkeys([*prefixed, *alike]))[:3])

    def variants(self, name: str) -> tuple[str, ...]:
        """The ids of several models that ``name`` may mean, because each begins with it: ``h100``. Empty if
        it is an id, or a product name with the vendor."""
        if self.by_id(name) or name.lower().startswith("nvidia"):
            return ()
        models = self._begun(name)
        return tuple(model.id for model in models) if len(models) > 1 else ()

    def _begun(self, name: str) -> list[GpuModel]:
        """The models whose id begins with these words."""
        wanted = _plain(name)
        return [model for model in self.models if wanted and model.id.startswith(f"{wanted}-")]

    def advice(self, name: str) -> str:
        """A hint in place of an unknown name."""
        nearest = self.nearest(name)
        return "; ".join(
            [*([f"nearest: {', '.join(nearest)}"] if nearest else []), "partage machines lists all"]
        )


@cache
def load_catalogue() -> Catalogue:
    """The catalogue; read once."""
    mig = msgspec.json.decode((FOLDER / "mig.json").read_bytes(), type=_MigFile)
    preferred = {name: row["preferred_starts"] for name, row in mig.geometries.items()}
    models = [model for row in mig.models for model in _mig_models(msgspec.json.decode(row), preferred)]
    return Catalogue((*models, *_plain_models(msgspec.json.decode((FOLDER / "gpus.json").read_bytes()))))


def model_named(name: str, *others: str) -> tuple[GpuModel, str]:
    """The model that a person names, and its product. Raises InputError with the nearest names.

    others: what else can be done, for the hint.
    """
    catalogue = load_catalogue()
    if variants := catalogue.variants(name):
        raise InputError(f"{name[:80]!r} is the name of several GPU models", choose_one(variants))
    found = catalogue.find(name)
    if found is None:
        raise InputError(
            f"no GPU model is called {name[:80]!r}", "; ".join([catalogue.advice(name), *others])
        )
    return found


def choose_one(variants: Sequence[str]) -> str:
    """The hint for an ambiguous name."""
    return f"choose one: {', '.join(variants)}"


def model_of(gpu: Gpu) -> str:
    """The id of a GPU's model; empty if it is not in the catalogue."""
    model = load_catalogue().by_gpu(gpu)
    return model.id if model else ""


def geometry_of(gpu: Gpu) -> Geometry | None:
    """What ``gpu`` allows under MIG; None if not known (``why_no_geometry``).

    What the driver of this GPU said (``Gpu.geometry``) counts before the catalogue: it is of this very GPU.
    """
    if gpu.geometry is not None:
        return gpu.geometry
    model = load_catalogue().by_gpu(gpu)
    return model.geometry if model else None


def lacks_geometry(gpu: Gpu) -> bool:
    """Whether only the driver can say what this GPU allows under MIG."""
    return gpu.mig_mode is not None and geometry_of(gpu) is None


def why_no_geometry(gpu: Gpu) -> str:
    """One sentence about a GPU for which ``geometry_of`` returns None.

    What the driver says comes first: a GPU without a MIG mode has no MIG, in the catalogue or not.
    """
    if gpu.mig_mode is None:
        return f"{gpu.product} has no MIG"
    model = load_catalogue().by_gpu(gpu)
    if model is None:
        name = f"{gpu.product} ({gpu.pci_device_id})"
        return f"{name} is not in the catalogue: its MIG layouts cannot be planned offline; {ASK_THE_DRIVER}"
    return model.no_geometry


@lru_cache(maxsize=1024)  # every look-up of a GPU compares with every name of the catalogue
def _plain(product: str) -> str:
    words = product.lower().replace("_", " ").replace("-", " ").split()
    return "-".join(words[1:] if words[:1] == ["nvidia"] else words)


def _memory_agrees(model: GpuModel, memory_bytes: int) -> bool:
    return abs(memory_bytes - model.memory_bytes) <= model.memory_bytes * _MEMORY_TOLERANCE


def _branch(version: str | None) -> int:
    """580 for ``580.82.07`` and for ``R580 (JetPack)``; 0 if not known."""
    return int((version or "0").lstrip("R").split()[0].partition(".")[0])


def _capability(text: str | None) -> tuple[int, int]:
    major, _, minor = (text or "0.0").partition(".")
    return int(major), int(minor)


def _plain_models(data: Mapping[str, Any]) -> tuple[GpuModel, ...]:
    sources = data["sources"]
    return tuple(
        GpuModel(
            id=row["id"],
            products=(row["product"],),
            pci_device_ids=(row["pci_device_id"],) if row["pci_device_id"] else (),
            architecture=row["architecture"],
            compute_capability=_capability(row["compute_capability"]),
            memory_bytes=row["memory_mib"] * MIB,
            no_geometry=f"{row['product']} has no MIG",
            sources=tuple(sources[name] for name in row["source"]),
        )
        for row in data["models"]
    )


def _mig_models(
    row: Mapping[str, Any], preferred: Mapping[str, Mapping[str, list[int]]]
) -> Iterator[GpuModel]:
    """The model of a row. Drivers have named the profiles of one device id by two totals, 186 and 189 GiB
    (GB200): each total is a model of its own."""
    model = _mig_model(row, preferred)
    yield model
    for key, names in (row.get("name_variants") or {}).items():
        total_gib = int(key.rpartition("_")[2])
        model_id = model.id.replace(f"{row['name_total_gib']}gb", f"{total_gib}gb")
        yield replace(
            model,
            id=model_id,
            memory_bytes=total_gib * GIB,
            geometry=_geometry(row, model_id, names, preferred[row["geometry"]]),
        )


def _mig_model(row: Mapping[str, Any], preferred: Mapping[str, Mapping[str, list[int]]]) -> GpuModel:
    names = tuple(profile["name"] for profile in row["profiles"])
    total_mib = row["memory_total_mib"]
    geometry = row["geometry"]
    return GpuModel(
        id=row["id"],
        products=tuple(row["product_names"]),
        pci_device_ids=(*row["pci_device_ids"], *(row.get("also_seen_ids") or ())),
        architecture=row["architecture"],
        compute_capability=_capability(row["compute_capability"]),
        memory_bytes=total_mib * MIB if total_mib else row["name_total_gib"] * GIB,
        mig=True,
        mig_survives_reboot=bool(row["mig_mode_survives_reboot"]),
        mig_needs_reset=bool(row["mig_mode_change_needs_reset"]),
        mig_branch=_branch(row["min_driver"]),
        geometry=_geometry(row, row["id"], names, preferred[geometry]) if geometry else None,
        no_geometry=""
        if geometry
        else f"no placements are published for {row['id']}: not plannable offline; {ASK_THE_DRIVER}",
        sources=tuple(row["source"]),
    )


def _geometry(
    row: Mapping[str, Any], model_id: str, names: Sequence[str], preferred: Mapping[str, list[int]]
) -> Geometry:
    return Geometry(
        model=model_id,
        compute_slices=row["compute_slices"],
        memory_slices=row["memory_slices"],
        max_instances=row["max_instances"],
        profiles=tuple(
            _spec(name, profile, preferred[profile["kind"]])
            for name, profile in zip(names, row["profiles"], strict=True)
        ),
        misnamed=misprints_of(row["id"]),
    )


def _spec(name: str, row: Mapping[str, Any], preferred: list[int]) -> ProfileSpec:
    memory_mib, engines = row["memory_mib"], row["engines"]
    return ProfileSpec(
        profile=MigProfile.parse(name),
        compute_slices=row["slices"],
        size=row["placements"]["size"],
        starts=tuple(row["placements"]["starts"]),
        preferred_starts=tuple(preferred),
        max_count=row["max_count"],
        memory_bytes=memory_mib * MIB if memory_mib else None,
        engines=Engines(**engines) if engines else None,
        multiprocessors=row["sm"],
        smi_id=row["smi_id"],
    )
