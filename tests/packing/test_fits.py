"""``partage fits`` and ``partage machines``, against an enumeration that shares no code with them."""

import json
import re
from collections import Counter

import pytest
from PIL import Image

from partage.cli.main import run
from partage.edges.files.catalogue import load_catalogue
from partage.model.layout import LayoutItem
from partage.packing.decide.openings import maximal_layouts
from tests.examples import variants
from tests.oracle import enumerate_mig as oracle

MODELS = sorted(oracle.models_with_placements())


def fits(capsys, *arguments, code=0):
    assert run(["fits", *arguments, "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)


def geometry(model_id):
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert model.geometry is not None
    return model.geometry


@pytest.mark.parametrize("model_id", variants(MODELS, 3))
def test_the_maximal_layouts_are_those_of_the_enumeration(model_id):
    feasible = [Counter(dict(multiset)) for multiset in oracle.feasible(model_id)]
    maximal = {tuple(sorted(one.items())) for one in feasible if not any(one < other for other in feasible)}
    ways = Counter(
        tuple(sorted(Counter(name for name, _ in one).items())) for one in oracle.fixed_layouts(model_id)
    )
    found = maximal_layouts(geometry(model_id))
    names = [tuple(sorted(one.profiles.items())) for one in found]
    assert sorted(names) == sorted(maximal)
    assert [one.ways for one in found] == [ways[name] for name in names]


@pytest.mark.parametrize("model_id", MODELS)
def test_a_layout_is_shown_in_a_placement_that_there_is(model_id):
    for layout in maximal_layouts(geometry(model_id)):
        items = map(LayoutItem.parse, layout.layout)
        pairs = tuple(sorted((str(item.profile), item.start) for item in items))
        assert pairs in oracle.fixed_layouts(model_id)


@pytest.mark.parametrize(
    "model_id", ["a100-40gb", "h100-sxm5-80gb", "a30-24gb", "rtx-pro-6000-blackwell-server"]
)
def test_profiles_are_those_that_the_drivers_list(capsys, model_id):
    (model,) = fits(capsys, model_id)["models"]
    rows = {row["profile"]: row for row in model["mig"]["profiles"]}
    expected = oracle.models_with_placements()[model_id]
    assert set(rows) == {profile["name"] for profile in expected["profiles"]}
    for profile in expected["profiles"]:
        row = rows[profile["name"]]
        assert row["placements"] == {
            "starts": profile["placements"]["starts"],
            "size": profile["placements"]["size"],
        }
        assert (row["maxCount"], row["id"], row["multiprocessors"]) == (
            profile["max_count"],
            profile["smi_id"],
            profile["sm"],
        )
        assert row["memoryBytes"] == profile["memory_mib"] << 20
        assert row["engines"] == profile["engines"]


def test_the_table_says_what_fits_and_where(capsys):
    assert run(["fits", "a30-24gb"]) == 0
    said = capsys.readouterr().out
    assert "NVIDIA A30 (a30-24gb), ampere, 24 GiB" in said
    assert "1 x 2g.12gb + 2 x 1g.6gb 2g.12gb@0 1g.6gb@2-3 2" in re.sub(" +", " ", said)
    assert "Layouts to which nothing can be added: 4" in said
    assert "and 4 with +me" in said


@pytest.mark.parametrize(
    ("model", "why"), [("l4", "has no MIG"), ("rtx-pro-5000-blackwell-48gb", "placements")]
)
def test_a_model_without_mig_is_told_how_else_it_is_shared(capsys, model, why):
    (row,) = fits(capsys, model)["models"]
    assert row["mig"] is None
    assert why in row["noMig"]
    assert [way.partition(":")[0] for way in row["sharing"]] == ["time-slicing", "MPS", "exclusive"]
    assert run(["fits", model]) == 0
    assert "MPS: up to 48 shares" in capsys.readouterr().out


def test_a_machine_is_answered_model_by_model(capsys):
    rows = fits(capsys, "--machine", "2xa30-24gb+l4+a30-24gb")["models"]
    assert [(row["product"], row["gpus"]) for row in rows] == [("NVIDIA A30", [0, 1, 3]), ("NVIDIA L4", [2])]
    assert run(["fits", "--machine", "2xa30-24gb+l4+a30-24gb"]) == 0
    said = capsys.readouterr().out
    assert "GPUs 0-1, 3: NVIDIA A30" in said
    assert "GPU 2: NVIDIA L4" in said


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["h100"], "h100-nvl-94gb"), (["h100-sxm5-81gb"], "h100-sxm5-80gb"), (["l4", "--machine", "l4"], "")],
)
def test_a_name_that_is_no_model_is_an_error_with_the_names_there_are(capsys, arguments, hint):
    (problem,) = fits(capsys, *arguments, code=2)["problems"]
    assert hint in problem["hint"]


def test_the_picture_has_a_card_for_each_layout(capsys, tmp_path):
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    assert run(["fits", "a30-24gb", "--picture", str(svg)]) == 0
    assert run(["fits", "a30-24gb", "--picture", str(png)]) == 0
    drawn = svg.read_text()
    assert [f"Layout {number}  A30" in drawn for number in range(1, 6)] == [True, True, True, True, False]
    assert drawn.count(">1g.6gb<") == 6
    with Image.open(png) as image:
        assert image.width > 1000
    capsys.readouterr()
    assert run(["fits", "l4", "--picture", str(svg)]) == 3
    assert "NVIDIA L4 has no MIG" in capsys.readouterr().err


def test_machines_lists_every_model(capsys):
    assert run(["machines", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [row["id"] for row in rows] == [model.id for model in load_catalogue().models]
    assert run(["machines"]) == 0
    said = capsys.readouterr().out
    assert all(row["id"] in said for row in rows)


def test_one_model_or_those_of_one_family(capsys):
    assert run(["machines", "NVIDIA A30"]) == 0
    assert "--machine 8xa30-24gb" in capsys.readouterr().out
    assert run(["machines", "h100", "-o", "json"]) == 0
    ids = [row["id"] for row in json.loads(capsys.readouterr().out)["models"]]
    assert len(ids) > 2
    assert all(name.startswith("h100-") for name in ids)
    assert run(["machines", "h1000"]) == 2


def test_every_listed_name_is_one_for_machine(capsys):
    assert run(["machines", "-o", "json"]) == 0
    for row in json.loads(capsys.readouterr().out)["models"]:
        code = run(["record", "--machine", row["id"]])
        assert code == (0 if row["simulated"] else 3), row["id"]
        capsys.readouterr()
