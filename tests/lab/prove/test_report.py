"""The page that people keep: as a whole, and nothing of a tenant's words is taken for markup."""

import re

import pytest
from msgspec.structs import replace

from partage.lab.prove.model import ProofVerdict
from partage.lab.prove.report import meaning, proof_page
from tests.lab.prove import reports

PAGE = r"""# What the shares of this node guarantee

- GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, default mode, GPU-1
- driver 595.1, CUDA 13.2
- 2026-11-21T20:00:00+00:00, partage 0.1.0, torch 2.9
- partage prove --faults

**5 promises: 2 kept, 1 weaker than promised, 1 broken, 1 not tried.**
A promise is broken: do not rely on these shares before the rows above are explained.

> Held to the policy \*policy.yaml\*.

## nvidia.com/gpu.shared: GPU 0, one of 4 shares, 20 GiB

| attack | states | promised | tried | seen | verdict | evidence |
|---|---|---|---|---|---|---|
| mps-over | guarded | Promised over. | Tried over. | it got 20 GiB \| and \<no\> more | kept | hardware |
| mps-unseen | guarded | Promised unseen. | Tried unseen. | it got 25G | **weaker-than-promised** | hardware |
| mps-users | guarded | Promised users. | Tried users. | both worked | kept | simulated |

## nvidia.com/mig-3g.40gb: GPU 1, MIG device, 40 GiB

| attack | states | promised | tried | seen | verdict | evidence |
|---|---|---|---|---|---|---|
| mps-memory | hard | Promised memory. | Tried memory. | it got 60 GiB | **broken** | hardware |

## Not offered here

| attack | states | promised | tried | seen | verdict | evidence |
|---|---|---|---|---|---|---|
| mps-off | advisory | Promised off. | Tried off. | not tried: it takes a GPU | not-tried | documented |
"""


def test_the_page_is_this():
    assert proof_page(reports.full()).startswith(PAGE)


def test_every_line_of_a_table_has_as_many_cells_as_its_head():
    rows = [line for line in proof_page(reports.full()).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {8}


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((), "A promise is broken"),
        (("broken",), "One that tries to avoid a limit can"),
        (("broken", "weaker-than-promised"), "What was tried held. What was not tried is not known."),
        (("broken", "weaker-than-promised", "not-tried"), "What was tried held."),
        (("broken", "weaker-than-promised", "kept"), "Nothing was tried, so nothing is known"),
    ],
)
def test_the_result_is_said_in_words_for_those_who_give_shares_away(without, said):
    """The last line had numbers of verdicts, and not what they mean."""
    gone = {ProofVerdict(one) for one in without}
    report = reports.full()
    report = replace(report, rows=tuple(row for row in report.rows if row.verdict not in gone))
    assert said in meaning(report)
    assert "simulation" not in meaning(report)
    assert meaning(replace(report, machine="1xl4")).startswith(
        "This was a simulation, and says nothing of a GPU."
    )
