"""Colours and marks tell recurrences and budgets apart, in colour and in grey."""

import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from analysis.page import style as plots
from analysis.page.style import (
    RecurrenceStyle,
    budget_axis,
    budget_colours,
    count_axis,
    new_figure,
)

RENDERS_FIGURES = True


def lightness(colour) -> float:
    """Relative luminance (sRGB)."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_no_plotting_state_is_touched():
    assert "matplotlib.pyplot" not in sys.modules


def test_every_r_differs_in_colour_marker_and_line():
    styles = RecurrenceStyle([8, 1, 4, 2, 2, 16])
    for key in ("color", "marker", "linestyle"):
        assert len({str(styles(r)[key]) for r in (1, 2, 4, 8, 16)}) == 5


def test_no_two_of_many_r_look_alike():
    styles = RecurrenceStyle(range(1, 25))
    assert len({str(styles(r)) for r in range(1, 25)}) == 24


def test_an_r_keeps_its_style_whatever_order_it_comes_in():
    assert RecurrenceStyle([1, 2, 4])(4) == RecurrenceStyle([4, 2, 1, 4])(4)


@pytest.mark.parametrize("n", [1, 3, 6, 9])
def test_budgets_run_from_dark_to_light_and_stay_readable_on_paper(n):
    budgets = list(np.geomspace(1e17, 1e20, n))
    shades = [lightness(colour) for colour in budget_colours(budgets[::-1]).values()]
    assert shades == sorted(shades)
    assert len(set(shades)) == n
    assert max(shades) < 0.55


def test_the_same_figure_twice_is_the_same_file():
    def draw() -> bytes:
        figure = new_figure(2, 2)
        figure.subplots().plot([1, 2, 3])
        return plots.svg(figure)

    assert draw() == draw()


@pytest.mark.parametrize("span", [(100, 250), (30, 900), (1e3, 1e6), (1, 1e12)])
def test_axes_of_counts_have_a_few_labels_over_any_range(span):
    axes = new_figure(3, 3).subplots()
    axes.set_xscale("log")
    axes.plot(span, [0, 1])
    count_axis(axes.xaxis, sparse=True)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 7


def test_an_axis_of_a_single_budget_shows_it():
    axes = new_figure(3, 3).subplots()
    axes.set_xscale("log")
    axes.errorbar([1e12], [1.0], yerr=[0.1])
    budget_axis(axes.xaxis)
    low, high = axes.get_xlim()
    assert low < 1e12 / 2
    assert high > 2e12
    assert 1e12 in axes.get_xticks()
