"""What providers publish: their right rows are ours, their wrong ones are understood and said to be wrong."""

import json
from collections import Counter

import pytest

from partage.cli.main import run
from partage.edges.files.catalogue import load_catalogue, provider_tables
from partage.model.layout import DoesNotFit, LayoutItem, named_layouts, place

ROWS = [(model, row) for table in provider_tables() for model in table.models for row in table.rows]
WRONG = [(model, row) for model, row in ROWS if row.wrong]


def geometry(model_id):
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert model.geometry is not None
    return model.geometry


def plan(capsys, layout, machine):
    """Exit code, what is offered, and what is said, of one layout on one machine."""
    policy = json.dumps({"version": "partage/v1", "gpus": [{"select": "all", "mig": {"layout": layout}}]})
    return _plan(capsys, policy, machine)


def _plan(capsys, policy, machine):
    import io
    import sys

    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(policy.encode()))
    try:
        code = run(["plan", "--policy", "-", "--machine", machine, "-o", "json"])
    finally:
        sys.stdin = stdin
    answer = json.loads(capsys.readouterr().out)
    offered = {
        row["name"].removeprefix("nvidia.com/mig-"): row["count"] for row in answer.get("resources", ())
    }
    return code, offered, [problem["message"] for problem in answer["problems"]]


def test_the_tables_are_those_of_two_providers_for_six_cards():
    assert Counter(table.provider for table in provider_tables()) == {"FPT": 3, "51CTO": 3}
    assert sum(len(table.rows) for table in provider_tables()) == 37


@pytest.mark.parametrize(("model", "row"), ROWS)
def test_every_row_as_it_has_to_be_fits_and_is_what_its_name_says(model, row):
    items = tuple(map(LayoutItem, row.right))
    assert len(place(geometry(model), items)) == len(items)
    if row.name is not None and not row.wrong:
        assert Counter(named_layouts(geometry(model))[row.name]) == Counter(items)


@pytest.mark.parametrize(("model", "row"), WRONG)
def test_every_row_that_is_called_wrong_is_impossible_as_printed(model, row):
    with pytest.raises(DoesNotFit):
        place(geometry(model), tuple(map(LayoutItem, row.listed)))
    assert row.why


@pytest.mark.parametrize(
    ("machine", "layout", "offered", "said"),
    [
        ("h200-141gb", "all-2g.25gb", {"2g.35gb": 3}, "using all-2g.35gb: 3 x 2g.35gb"),
        ("h200-141gb", ["2g.25gb"] * 3, {"2g.35gb": 3}, "using all-2g.35gb: 3 x 2g.35gb"),
        ("a100-80gb", ["4g.20gb"] * 4, {"1g.20gb": 4}, "using all-1g.20gb: 4 x 1g.20gb"),
        (
            "a800-80gb",
            ["3g.47gb", "2g.24gb", "1g.12gb"],
            {"1g.10gb": 1, "2g.20gb": 1, "3g.40gb": 1},
            "using 1 x 1g.10gb + 1 x 2g.20gb + 1 x 3g.40gb",
        ),
    ],
)
def test_a_misprinted_row_is_taken_for_what_was_meant_with_a_warning(capsys, machine, layout, offered, said):
    code, found, problems = plan(capsys, layout, machine)
    assert (code, found) == (0, offered)
    (problem,) = problems
    assert said in problem
    assert "is a misprint in" in problem


def test_a_right_name_whose_row_is_misprinted_is_simply_right(capsys):
    assert plan(capsys, "all-1g.20gb", "a100-80gb") == (0, {"1g.20gb": 4}, [])


def test_a_misprint_is_mended_for_its_own_card_only(capsys):
    assert plan(capsys, "all-2g.25gb", "h100-sxm5-80gb")[0] == 3
    assert plan(capsys, ["2g.25gb"] * 3, "h100-sxm5-80gb")[0] == 3


def test_part_of_a_misprinted_row_is_not_guessed_at(capsys):
    assert plan(capsys, ["4g.20gb"], "a100-80gb")[0] == 3


def test_a_misprint_in_a_mig_parted_file_is_mended_too(capsys):
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"2g.25gb": 3}}
    code, offered, (problem,) = _plan(
        capsys, json.dumps({"version": "v1", "mig-configs": {"all-2g.25gb": [entry]}}), "h200-141gb"
    )
    assert (code, offered) == (0, {"2g.35gb": 3})
    assert "all-2g.35gb" in problem
