"""The page carries everything itself, escapes what it is given, and reads numbers as numbers."""

import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from analysis.page.html import Html, PageFigure, Section, page, save_figures, scientific, table


class Outline(HTMLParser):
    """Collects tags, attributes and text; complains about tags that do not close."""

    VOID = frozenset({"meta", "img", "br"})

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


def small_figure() -> Figure:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    return figure


def test_nothing_is_loaded_from_elsewhere():
    section = Section("One", "<p>x</p>", [PageFigure("f", small_figure(), "caption")])
    outline = Outline(page("Title", "sub", [section]))
    links = [value for _, name, value in outline.attributes if name in ("src", "href")]
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)


def test_titles_and_cells_are_escaped():
    hostile = "<script>alert('x')</script>&"
    document = page(hostile, "", [Section(hostile, table(["run"], [[hostile]]))])
    assert "<script>" not in document
    assert Outline(document).text.count(hostile) >= 4  # title, heading, section, cell


def test_the_contents_link_to_every_section_but_the_first():
    sections = [Section("Answer"), Section("The fit", anchor="fit"), Section("How sure is φ?")]
    document = page("T", "", sections)
    anchors = re.findall(r'<a href="#([^"]+)">', document)
    assert anchors == ["fit", "how-sure-is-φ"]
    assert all(f'id="{anchor}"' in document for anchor in anchors)


def test_numbers_stand_right_and_missing_ones_are_dashes():
    html = table(["name", "value"], [["a", "-0.5"], ["b", None], ["c", Html("10<sup>3</sup>")]])
    assert '<td class="n">−0.5</td>' in html
    assert '<td class="n">–</td>' in html
    assert '<td class="n">10<sup>3</sup></td>' in html
    assert "<td>a</td>" in html


@pytest.mark.parametrize("text", ["2026-11-29", "run-3", "1e-05", "--seed=3", "steps 100-120"])
def test_hyphens_that_are_no_minus_stay(text):
    assert f">{text}</td>" in table(["x"], [[text]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.64e17, "4.64×10<sup>17</sup>"), (1e18, "10<sup>18</sup>"), (3e11, "3×10<sup>11</sup>")],
)
def test_scientific(value, text):
    assert scientific(value) == text


def test_figures_are_saved_as_png_and_pdf(tmp_path):
    save_figures([Section("S", figures=[PageFigure("curve", small_figure(), "")])], tmp_path)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.pdf", "curve.png"]
