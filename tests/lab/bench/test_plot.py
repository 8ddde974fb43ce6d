"""The plot."""

import sys

import pytest

from partage.answers.render.drawing import check_plot
from partage.errors import InputError, Unsatisfiable
from partage.lab.bench.model import BenchMachine
from partage.lab.bench.plot import figure, panels, plot_file
from partage.lab.bench.summary import three_digits
from partage.lab.place import TenantMode
from tests.lab.bench import runs


def _texts(drawn):
    found = [drawn.get_suptitle()]
    for axes in drawn.axes:
        found += [axes.get_title(loc="left"), *(label.get_text() for label in axes.get_xticklabels())]
    for legend in drawn.legends:
        found += [legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())]
    return found


def test_every_figure_that_there_is_has_a_panel_and_every_mode_a_word():
    words = _texts(figure(runs.full()))
    for said in ("Small kernels", "Saturating kernels", "Inference: requests", "Inference: latency"):
        assert any(text.startswith(said) for text in words)
    for mode in ("alone", "one after the other", "time-slicing", "MPS", "MIG, a device each"):
        assert mode in words
    assert words.count("8 processes") == 4
    assert "parallel, on the CPU" not in words


def test_a_bar_is_as_high_as_its_figure():
    alone, twice = (
        runs.pi(runs.SMALL, TenantMode.ALONE, 1, (2.0,)),
        runs.pi(runs.SMALL, TenantMode.MPS, 2, (2.0,)),
    )
    (axes,) = figure(runs.bench(alone, twice)).axes
    first, second = (patch.get_extents().height for patch in axes.patches)
    assert second == pytest.approx(2 * first)


def test_p99_stands_behind_p50():
    *_, latency = panels(runs.bench(runs.inference(TenantMode.ALONE, 1, 90, 120)))
    ((_, (bar,)),) = latency.groups
    assert bar.behind is not None
    assert (bar.spread.median, bar.behind.median) == (0.09, 0.12)


def test_a_run_without_figures_is_still_a_plot():
    assert figure(runs.bench()).axes == []
    assert plot_file(runs.bench(), "run.png").startswith(b"\x89PNG")


def test_without_a_gpu_the_title_says_so():
    bench = runs.bench(machine=BenchMachine("Linux", "a processor", 2))
    assert "CPU, no GPU" in figure(bench).get_suptitle()


def test_it_can_be_written_in_both_formats():
    assert plot_file(runs.full(), "run.PNG").startswith(b"\x89PNG")
    assert b"<svg" in plot_file(runs.full(), "run.svg")


def test_another_format_is_refused_before_anything_is_measured():
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        check_plot("run.gif")


def test_without_matplotlib_a_plot_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(Unsatisfiable, match="pip install matplotlib"):
        check_plot("run.png")


def test_numbers_have_three_digits_that_count():
    assert [three_digits(value) for value in (0.01234, 1.0, 3.14159, 31.4159, 99.97, 314.159, 31415.9)] == [
        "0.0123", "1.00", "3.14", "31.4", "100", "314", "31416",
    ]  # fmt: skip
