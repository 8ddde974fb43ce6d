"""The picture of a node in a file: what stands where, and that both formats say the same."""

import io
import json
import sys
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from partage.answers.render.cards import HeldOnNode, cards_of
from partage.answers.render.drawing import Box, Label, png, svg
from partage.answers.render.node_drawing import draw
from partage.cli.main import run
from partage.edges.files.catalogue import geometry_of
from partage.model.ids import GpuUuid, ResourceName, ShareId
from tests.answers.nodes import EXCLUSIVE, GUARDED, HARD, MIG, MPS, NONE, SLICED, gpu, node, offering

_MIGS = (("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))
_SVG = "{http://www.w3.org/2000/svg}"


def drawing(inventory, offer, holders=None, troubles=None, caption="as it is"):
    return draw(cards_of(inventory, offer, HeldOnNode(holders or {}, troubles or {}), geometry_of), caption)


def mig(n, profile, way=EXCLUSIVE, replicas=1):
    return offering(0, way, replicas, HARD, strategy=MIG, device=f"MIG-0-{n}", profile=profile)


OFFER = {"GPU-0": (mig(0, "3g.40gb"), mig(1, "1g.10gb", SLICED, 2)), "GPU-1": (offering(1, MPS, 4, GUARDED),)}
HOLDERS = {"MIG-0-0": "team/inference", "GPU-1::2": "a/embedder"}
NODE = node(gpu(0, *_MIGS), gpu(1))


def texts(drawn):
    return [shape.text for shape in drawn.shapes if isinstance(shape, Label)]


def bars(drawn, y_of):
    """Boxes in the row of boxes in which the label stands."""
    foot = next(shape.y for shape in drawn.shapes if isinstance(shape, Label) and shape.text == y_of)
    boxes = [s for s in drawn.shapes if isinstance(s, Box) and s.y < foot < s.y + s.height and s.height < 60]
    return sorted(boxes, key=lambda box: box.x)


def test_a_card_has_its_profiles_its_holders_and_both_rows():
    found = texts(drawing(NODE, OFFER, HOLDERS))
    for part in (
        "GPU 0  H100 80GB HBM3",
        "several ways",
        "memory",
        "compute",
        "3g.40gb",
        "inference",
        "embedder",
    ):
        assert part in found
    assert [text for text in found if text.isdecimal()] == list("01234567")
    assert "as it is" in found


def test_memory_stands_to_scale_and_compute_slices_below_it():
    drawn = drawing(node(gpu(0, *_MIGS)), {"GPU-0": OFFER["GPU-0"]}, HOLDERS)
    row = bars(drawn, "memory")
    slices = (row[-1].x + row[-1].width - row[0].x) / 8
    assert [round(box.width / slices, 1) for box in row] == [0.5, 0.5, 3, 4]
    assert [round((box.x - row[0].x) / slices, 1) for box in row] == [0, 0.5, 1, 4]
    compute = bars(drawn, "compute")
    assert [round((box.x - row[0].x) / slices) for box in compute] == [0, 1, 2, 3, 4, 5, 6]
    assert [box.fill == row[-1].fill for box in compute] == [False] * 4 + [True] * 3


@pytest.mark.parametrize("replicas", [2, 7, 48, 400])
def test_boxes_of_one_row_do_not_overlap_and_stay_on_their_card(replicas):
    inventory = node(gpu(0, *_MIGS), gpu(1))
    offer = {
        "GPU-0": (mig(0, "3g.40gb", SLICED, replicas), mig(1, "1g.10gb", SLICED, replicas)),
        "GPU-1": (offering(1, SLICED, replicas, NONE),),
    }
    drawn = drawing(inventory, offer, {"GPU-1::0": "a/b", "MIG-0-0::1": "c/d"})
    frame, *boxes = [shape for shape in drawn.shapes if isinstance(shape, Box)]
    for box in boxes:
        assert 0 <= box.x <= box.x + box.width <= frame.width
        assert 0 <= box.y <= box.y + box.height <= frame.height
    rows: dict[float, list[Box]] = {}
    for box in boxes:
        if box.height in (24, 46):
            rows.setdefault(box.y, []).append(box)
    for one, other in (pair for row in rows.values() for pair in combinations(row, 2)):
        assert one.x + one.width <= other.x + 0.01 or other.x + other.width <= one.x + 0.01


def test_more_shares_than_can_be_drawn_become_a_stripe_with_a_count():
    holders = {f"GPU-0::{n}": "a/b" for n in range(12)}
    found = texts(drawing(node(gpu(0)), {"GPU-0": (offering(0, SLICED, 48, NONE),)}, holders))
    assert "12 of 48 held" in found
    assert "b" not in found


def test_a_sick_card_and_a_lost_one_say_so():
    offer = {"GPU-0": (offering(0, EXCLUSIVE, 1, HARD),)}
    found = texts(drawing(node(gpu(0), lost=(1,)), offer, troubles={"GPU-0": "unhealthy: XID 48"}))
    assert "unhealthy: XID 48" in found
    assert "GPU 1  lost" in found
    assert "the GPU is lost" in found
    assert "no MIG device" not in found, "the legend says what the empty bar is"
    assert "gone" in found


def test_a_withdrawn_share_is_hatched_and_its_card_says_what_it_waits_for():
    uuid, last = GpuUuid("GPU-0"), ShareId("GPU-0::3")
    holders = {ShareId("GPU-0::0"): "a/nb"}
    withdrawn = frozenset({(ResourceName("nvidia.com/gpu"), last)})
    use = HeldOnNode(holders, {}, withdrawn, {uuid: "waiting for pod a/nb"})
    offer = {uuid: (offering(0, SLICED, 4, NONE),)}
    drawn = draw(cards_of(node(gpu(0)), offer, use, geometry_of), "")
    assert [box.hatched for box in bars(drawn, "memory")] == [False, False, False, True]
    assert {"waiting for pod a/nb", "withdrawn"} <= set(texts(drawn))
    assert svg(drawn).count("<path") == 2
    assert png(drawn) != png(draw(cards_of(node(gpu(0)), offer, HeldOnNode(holders), geometry_of), ""))


def test_the_legend_names_what_occurs():
    found = texts(drawing(NODE, OFFER, HOLDERS))
    assert {"held", "free", "no MIG device"} <= set(found)
    assert "planned" not in found
    assert not any(text.startswith("idle") for text in found)


def test_an_svg_is_xml_with_every_box_and_every_label_whatever_the_names_are():
    drawn = drawing(NODE, OFFER, {"MIG-0-0": "x/<&\">'"}, caption="a <b> & c")
    root = ET.fromstring(svg(drawn))
    assert (root.get("width"), root.get("height")) == (str(drawn.width), str(drawn.height))
    assert len(root.findall(f"{_SVG}rect")) == sum(isinstance(shape, Box) for shape in drawn.shapes)
    assert [one.text for one in root.findall(f"{_SVG}text")] == texts(drawn)
    assert {"<&\">'", "a <b> & c"} <= {one.text for one in root.findall(f"{_SVG}text")}


def test_a_png_has_the_same_boxes():
    drawn = drawing(NODE, OFFER, HOLDERS)
    image = Image.open(io.BytesIO(png(drawn))).convert("RGB")
    assert image.size == (2 * drawn.width, 2 * drawn.height)
    for box in bars(drawn, "compute"):
        pixel = image.getpixel((int(2 * (box.x + box.width / 2)), int(2 * (box.y + box.height / 2))))
        assert isinstance(pixel, tuple)
        assert "#" + "".join(f"{one:02x}" for one in pixel) == box.fill


def test_an_empty_node_has_a_picture_too():
    drawn = drawing(node(), {})
    assert svg(drawn)
    assert png(drawn)


# --- the verb ----------------------------------------------------------------------------------


def _policy(tmp_path, layout):
    policy = {"version": "partage/v1", "gpus": [{"select": "all", "mig": {"layout": layout}}]}
    (tmp_path / "p.json").write_text(json.dumps(policy))
    return str(tmp_path / "p.json")


def test_show_draws_a_plan_into_a_file_beside_its_answer(tmp_path, capsys):
    for name in ("node.svg", "node.PNG"):
        picture = tmp_path / name
        options = ["--policy", _policy(tmp_path, "all-1g.20gb"), "--picture", str(picture), "-o", "json"]
        assert run(["show", "--machine", "2xh100-sxm5-80gb", *options]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "Node"
        assert picture.stat().st_size > 1000
    found = [one.text for one in ET.parse(tmp_path / "node.svg").getroot().findall(f"{_SVG}text")]
    assert found.count("1g.20gb") == 8
    assert any(text and text.startswith("compute slice without a use") for text in found)


@pytest.mark.parametrize(
    ("name", "said"),
    [("node.pdf", ".svg or .png"), ("", "is empty"), ("no/dir.svg", "cannot be written")],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, capsys, name, said):
    assert run(["show", "--machine", "l4", "--picture", str(tmp_path / name) if name else ""]) == 2
    assert said in capsys.readouterr().err


def test_without_pillow_a_png_is_impossible_and_an_svg_is_not(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # as if it were not installed
    assert run(["show", "--machine", "l4", "--picture", str(tmp_path / "a.png")]) == 3
    assert "pip install pillow" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()
    assert run(["show", "--machine", "l4", "--picture", str(tmp_path / "a.svg")]) == 0


def test_units_of_memory_are_one_box_for_each_pod_as_wide_as_its_amount():
    units = offering(0, SLICED, 140, NONE, by_memory=True, memory_bytes=1 << 30)
    held = {f"GPU-0-_-{n}": "team/big" if n < 100 else "team/tiny" for n in range(102)}
    drawn = drawing(node(gpu(0)), {"GPU-0": (units,)}, held)
    big, tiny, free = bars(drawn, "big")
    assert big.width / tiny.width == pytest.approx(50, rel=0.3)
    assert free.x + free.width == pytest.approx(546, abs=20)
    assert "102 GiB of 140 GiB held; 140 units of 1 GiB" in " ".join(texts(drawn))
