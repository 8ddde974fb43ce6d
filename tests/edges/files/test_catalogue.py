"""The catalogue: what it knows, by which names, and that it says what its sources say."""

import subprocess
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, load_catalogue, why_no_geometry
from partage.sim.node.machine_names import parse_machine
from partage.units import GIB, MIB
from tests.oracle import enumerate_mig as oracle


def gpu_of(name):
    return parse_machine(name).inventory.gpus[0]


@pytest.mark.parametrize("row", oracle.facts()["models"], ids=lambda row: row["id"])
def test_every_mig_model_has_the_profiles_of_its_source(row):
    model = load_catalogue().by_id(row["id"])
    assert model is not None
    published = {p["name"]: p for p in row["profiles"]}
    if model.geometry is None:
        assert not any(p["placements"] for p in published.values())
        return
    assert {str(spec.profile) for spec in model.geometry.profiles} == set(published)
    for spec in model.geometry.profiles:
        source = published[str(spec.profile)]
        assert (list(spec.starts), spec.size) == (
            source["placements"]["starts"],
            source["placements"]["size"],
        )
        assert spec.max_count == source["max_count"]
        assert spec.memory_bytes == (source["memory_mib"] and source["memory_mib"] * MIB)
        assert sorted(spec.preferred_starts) == sorted(spec.starts)


@pytest.mark.parametrize("row", oracle.facts()["models"], ids=lambda row: row["id"])
def test_a_missing_total_is_taken_from_the_name(row):
    model = load_catalogue().by_id(row["id"])
    assert model is not None
    total_mib = row["memory_total_mib"]
    assert model.memory_bytes == (row["name_total_gib"] * GIB if total_mib is None else total_mib * MIB)


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "a100-sxm4-40gb", "nvidia a100 sxm4 40gb"]
)
def test_a_product_is_found_however_it_is_spelled(name):
    found = load_catalogue().find(name)
    assert found is not None
    assert (found[0].id, found[1]) == ("a100-40gb", "NVIDIA A100-SXM4-40GB")


def test_a_product_brings_its_own_device_id():
    assert gpu_of("A100-PCIE-40GB").pci_device_id == "0x20f110de"
    assert gpu_of("A100-SXM4-40GB").pci_device_id == "0x20b010de"


def test_a_device_id_is_found_in_any_case():
    found = load_catalogue().by_pci_device_id("0x233010DE")
    assert [model.id for model in found] == ["h100-sxm5-80gb"]


def test_models_share_a_name_or_a_device_id_only_where_memory_or_product_tells_them_apart():
    models = load_catalogue().models
    names = Counter(name.lower() for model in models for name in {model.id, *model.products})
    assert [name for name, count in names.items() if count > 1] == ["nvidia gb200"]
    ids = Counter(one for model in models for one in model.pci_device_ids)
    assert sorted(one for one, count in ids.items() if count > 1) == ["0x25b610de", "0x294110de"], (
        "A2 and A16"
    )


@pytest.mark.parametrize(
    "name", ["a2", "a16", "gb200-186gb", "gb200-189gb", "h200-141gb", "rtx-pro-6000-blackwell-ws"]
)
def test_a_gpu_of_a_model_is_recognised_as_that_model(name):
    gpu = gpu_of(name)
    found = load_catalogue().by_gpu(gpu)
    assert found is not None
    assert found.id == name


@pytest.mark.parametrize("model", load_catalogue().models, ids=lambda model: model.id)
def test_every_model_names_its_sources(model):
    assert model.sources
    assert model.memory_bytes > 0 or model.id == "thor-igpu"
    assert not model.mig or any("MIG" in source or "kernel" in source for source in model.sources)


@pytest.mark.parametrize(
    ("short", "product"),
    {
        "a10g": "NVIDIA A10G",
        "l40s": "NVIDIA L40S",
        "t4g": "NVIDIA T4G",
        "rtx-a6000": "NVIDIA RTX A6000",
        "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation",
        "h200": "NVIDIA H200",
        "h100-nvl": "NVIDIA H100 NVL",
        "b300": "NVIDIA B300 SXM6 AC",
        "gb300": "NVIDIA GB300",
        "p100": "Tesla P100-PCIE-16GB",
    }.items(),
)
def test_a_short_name_that_means_one_model_is_enough(short, product):
    assert gpu_of(f"2x{short}").product == product


@pytest.mark.parametrize("short", ["v100", "h100", "gh200", "rtx-pro-6000", "h20", "a800"])
def test_a_short_name_of_several_models_is_not_guessed(short):
    assert len(load_catalogue().variants(short)) > 1


def test_a_typing_mistake_gets_the_nearest_names():
    assert "a100-40gb" in load_catalogue().nearest("a100-40g")
    assert "rtx-4090" in load_catalogue().nearest("rtx4090")


def test_the_beginning_of_a_name_gets_the_names_that_begin_so():
    assert load_catalogue().nearest("a100")[:2] == ("a100-40gb", "a100-80gb")
    assert load_catalogue().nearest("H200-")[0] == "h200-141gb"


def test_a_name_like_no_other_gets_all_that_are_known():
    assert load_catalogue().nearest("zzzzzz") == ()
    assert load_catalogue().advice("zzzzzz") == "partage machines lists all"


def test_a_gpu_whose_device_id_is_unknown_is_recognised_by_product_and_memory():
    gpu = replace(gpu_of("a30-24gb"), pci_device_id="0x00000000")
    geometry = geometry_of(gpu)
    assert geometry is not None
    assert geometry.model == "a30-24gb"


def test_a_gpu_with_far_less_memory_than_its_model_is_not_that_model():
    """A slice of a card in a virtual machine keeps the card's device id."""
    gpu = replace(gpu_of("a100-80gb"), memory_bytes=20 * GIB)
    assert geometry_of(gpu) is None
    assert "not in the catalogue" in why_no_geometry(gpu)


def test_profile_names_follow_the_total_where_one_card_was_sold_with_two():
    smaller = gpu_of("gb200-186gb")
    larger = geometry_of(replace(smaller, memory_bytes=189 * GIB))
    usual = geometry_of(smaller)
    assert larger is not None
    assert usual is not None
    assert (larger.model, usual.model) == ("gb200-189gb", "gb200-186gb")
    assert {"3g.95gb", "4g.95gb", "7g.189gb"} <= {str(spec.profile) for spec in larger.profiles}
    assert [str(spec.profile) for spec in usual.profiles][-1] == "7g.186gb"


@pytest.mark.parametrize(("name", "words"), [("l40s", "has no MIG"), ("a30-24gb", "")])
def test_the_reason_for_a_missing_geometry_is_a_sentence(name, words):
    gpu = gpu_of(name)
    assert (geometry_of(gpu) is None) is bool(words)
    assert words in why_no_geometry(gpu)


@pytest.mark.parametrize("name", ["t4", "l40s"])
def test_a_gpu_without_a_mig_mode_has_no_mig_whatever_the_catalogue_knows_of_it(name):
    """A T4 with ECC reports less memory than its model, and an A40 is not in the catalogue."""
    gpu = replace(gpu_of(name), memory_bytes=GIB, product="NVIDIA A40", pci_device_id="0x223510de")
    assert why_no_geometry(gpu) == "NVIDIA A40 has no MIG"


def test_a_model_without_published_placements_is_not_plannable_offline():
    model = load_catalogue().by_id("rtx-pro-5000-blackwell-48gb")
    assert model is not None
    assert "not plannable offline" in model.no_geometry


def test_reading_the_catalogue_takes_no_yaml():
    code = (
        "import sys; from partage.edges.files.catalogue import load_catalogue; load_catalogue();"
        "sys.exit('yaml' in sys.modules or 'difflib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
