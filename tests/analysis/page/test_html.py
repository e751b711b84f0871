"""The page carries everything itself and escapes what it is given; a section also is text."""

import re
from functools import partial
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from analysis.page import style
from analysis.page.chart import Curve, Panel, chart
from analysis.page.html import page
from analysis.page.output import write_figures, write_tables
from analysis.page.section import Folded, Items, PageFigure, Section, Text
from analysis.page.table import Column, Table

RENDERS_FIGURES = True
HOSTILE = "<script>alert('x')</script>& \x1b[31m $\\frac$ \udc80"


class Outline(HTMLParser):
    """Collects tags, attributes and text; complains about tags that do not close."""

    VOID = frozenset({"meta", "img", "br", "source"})

    def __init__(self, document: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(document)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def draw(label: str, width: float) -> Figure:
    line = ([0, 1], [0, 1], {"color": "black"})
    left, right = Panel([Curve(*line, label), Curve(*line, "b" * 90)], "x"), Panel([], "x")
    return chart([left, right], width, columns=2, height=1.0)


@pytest.fixture(scope="module")
def section():
    table = Table(f"runs {HOSTILE}", HOSTILE, (Column("run", "run"),), [{"run": HOSTILE}])
    figure = PageFigure(f"../curve {HOSTILE}", partial(draw, HOSTILE), HOSTILE, HOSTILE)
    content = [
        Text("φ = 0.5: 95 % interval 0.4 to 0.6", "answer"),
        "L = E + A·(N_once + r^φ·N_rec)^−α",
        HOSTILE,
        Items(["one", HOSTILE], warnings=True),
        figure,
        Text("small print", "note"),
        Folded(HOSTILE, [table, Text("3 warnings", link="warnings")]),
    ]
    return Section(HOSTILE, content, "first", {"table": table, "n": 3})


@pytest.fixture(scope="module")
def document(section):
    return page(HOSTILE, HOSTILE, [section, Section("Next", ["x"], "next")])


def test_nothing_is_loaded_from_elsewhere(document):
    attributes = Outline(document).attributes
    links = [value for _, name, value in attributes if name in ("src", "href", "srcset")]
    assert len(links) == 4
    assert all(link.startswith(("data:", "#")) for link in links)


def test_what_comes_from_files_is_escaped_everywhere(document):
    assert "<script>" not in document
    assert "\x1b" not in document
    document.encode()
    outline = Outline(document)
    visible = "<script>alert('x')</script>& \\x1b[31m $\\frac$ \\udc80"
    assert outline.text.count(visible) == 10
    assert ("img", "alt", visible) in outline.attributes


def test_the_contents_link_to_every_section_but_the_first(document):
    assert re.findall(r'<nav[^>]*><a href="#([^"]+)">Next</a></nav>', document) == ["next"]
    assert 'id="next"' in document


def test_formulas_and_the_answer_are_set(document):
    assert "N<sub>once</sub> + r<sup>φ</sup>·N<sub>rec</sub>)<sup>−α</sup>" in document
    assert "φ = 0.5 <small>95 % interval 0.4 to 0.6</small>" in document


def test_a_narrow_page_has_its_panels_below_each_other():
    wide, narrow = draw("a", style.PAGE), draw("a", style.PHONE)
    for figure, columns in ((wide, 2), (narrow, 1)):
        figure.draw_without_rendering()
        boxes = [ax.get_position() for ax in figure.axes]
        assert len({round(box.x0, 1) for box in boxes}) == columns
        (legend,) = figure.legends
        box = legend.get_window_extent().transformed(figure.transFigure.inverted())
        assert box.y1 <= min(each.y0 for each in boxes)
        assert box.x0 >= 0
        assert box.x1 <= 1


def test_the_terminal_gets_sentences_and_open_tables(section):
    text = section.text()
    assert text.splitlines()[0] == "φ = 0.5: 95 % interval 0.4 to 0.6"
    assert "warning: one" in text
    assert "small print" not in text
    assert "\x1b" not in text
    assert section.json() == {"table": [{"run": HOSTILE}], "n": 3}


def test_files_have_safe_names_of_their_own(section, tmp_path):
    assert write_figures([section, section], tmp_path) == 2
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    endings = sorted(name.rpartition(".")[2] for name in names)
    assert endings == ["pdf", "pdf", "png", "png", "svg", "svg"]
    assert all(re.fullmatch(r"_curve_[\w.=+-]*", name) for name in names)
    assert write_tables([section], tmp_path, None) == 0
    for form, ending in (("csv", "csv"), ("latex", "tex")):
        assert write_tables([section], tmp_path, form) == 1
        (path,) = (tmp_path / "tables").glob(f"*.{ending}")
        assert "x" in path.read_text()
