"""The plot."""

import pytest

from partage.faces.bench.chart import chart, scale
from partage.faces.bench.model import Machine, Mode
from partage.faces.bench.summary import digits
from partage.faces.render.drawing import Box, Label
from partage.faces.render.paper import png, svg
from tests.faces.bench import runs


def _labels(drawing):
    return [shape.text for shape in drawing.shapes if isinstance(shape, Label)]


def test_every_figure_that_there_is_has_a_panel_and_every_mode_a_word():
    words = _labels(chart(runs.full()))
    for said in ("Small kernels", "Saturating kernels", "Inference: requests", "Inference: latency"):
        assert any(text.startswith(said) for text in words)
    for mode in ("alone", "one after the other", "time-slicing", "MPS", "MIG, a device each"):
        assert mode in words
    assert words.count("8 processes") == 4
    assert "parallel, on the CPU" not in words


def test_nothing_leaves_the_paper():
    drawing = chart(runs.full())
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            assert 0 <= shape.x <= shape.x + shape.width <= drawing.width
            assert 0 <= shape.y <= shape.y + shape.height <= drawing.height
        else:
            assert 0 <= shape.x <= drawing.width
            assert 0 < shape.y < drawing.height


def test_a_bar_is_as_high_as_its_figure():
    alone, twice = runs.pi(runs.SMALL, Mode.ALONE, 1, (2.0,)), runs.pi(runs.SMALL, Mode.MPS, 2, (2.0,))
    drawing = chart(runs.bench(alone, twice))
    heights = {
        shape.fill: shape.height for shape in drawing.shapes if isinstance(shape, Box) and shape.height > 20
    }
    assert heights["#00738c"] == pytest.approx(2 * heights["#66727f"])


def test_a_run_without_figures_is_still_a_drawing():
    assert _labels(chart(runs.bench()))


def test_without_a_gpu_the_title_says_so():
    bench = runs.bench(machine=Machine("Linux", "a processor", 2))
    assert any("CPU, no GPU" in text for text in _labels(chart(bench)))


def test_it_can_be_written_in_both_formats():
    drawing = chart(runs.full())
    assert png(drawing).startswith(b"\x89PNG")
    assert svg(drawing).startswith("<svg")


@pytest.mark.parametrize("highest", [0.0, 1e-6, 0.034, 1.0, 1.99, 7.3, 123456.0])
def test_an_axis_has_a_few_round_steps_and_room_above(highest):
    step, top = scale(highest)
    assert top > highest
    assert top <= max(highest, 1e-9) * 3
    assert 2 <= round(top / step) <= 7


def test_numbers_have_three_digits_that_count():
    assert [digits(value) for value in (0.01234, 1.0, 3.14159, 31.4159, 99.97, 314.159, 31415.9)] == [
        "0.0123", "1.00", "3.14", "31.4", "100", "314", "31416",
    ]  # fmt: skip
