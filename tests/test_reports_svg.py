"""Drawings in a page: many together, none with a script, none that looks elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcit.reports.svg import embed_svg
from mcit.task import DataError

DRAWING = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="200pt" height="100pt"
  version="1.1">
 <title>a title that would cover the whole drawing as a tip</title>
 <metadata><a xmlns="http://purl.org/dc/elements/1.1/">http://example.org</a></metadata>
 <defs><style type="text/css">*{stroke-linejoin: round} #mark{fill: #ffffff}</style>
  <path id="mark" d="M 0.123456789 0
L 10 0.000123456
z"/><clipPath id="clip"><rect width="10" height="10"/></clipPath></defs>
 <g id="unused"><use xlink:href="#mark" clip-path="url(#clip)" style="clip-path: url('#clip'); fill: #000"/></g>
 <image xlink:href="data:image/png;base64,AAAA"/>
 <text>a &lt;b&gt; c</text>
</svg>
"""


@pytest.fixture
def drawing(tmp_path) -> Path:
    path = tmp_path / "drawing.svg"
    path.write_text(DRAWING, encoding="utf-8")
    return path


def write(path: Path, inside: str) -> Path:
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{inside}</svg>',
        encoding="utf-8",
    )
    return path


def test_the_same_drawing_twice_shares_no_id(drawing):
    both = embed_svg(drawing, "one", "") + embed_svg(drawing, "two", "")
    ids = re.findall(r'\bid="([^"]+)"', both)
    assert len(ids) == len(set(ids)) == 6


def test_every_reference_is_to_an_id_of_its_own_drawing(drawing):
    text = embed_svg(drawing, "one", "")
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    found = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert len(found) == 3
    assert set(found) <= ids
    assert "unused" not in text


def test_a_style_holds_for_its_own_drawing_only(drawing):
    text = embed_svg(drawing, "one", "")
    (style,) = re.findall(r"<style[^>]*>(.*?)</style>", text)
    assert style.startswith("#one { *{stroke-linejoin: round}")
    assert re.search(r"#one-\d+\{fill: #ffffff\}", style)  # the id was renamed, the colour was not


def test_nothing_of_a_drawing_is_fetched(drawing):
    text = embed_svg(drawing, "one", "")
    assert "http" not in text
    assert "data:image/png;base64,AAAA" in text


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<rect onload="alert(1)"/>',
        '<image href="http://example.org/a.png"/>',
        '<rect fill="url(http://example.org/a.svg#b)"/>',
        "<style>@import url(http://example.org/a.css); rect{fill: url('http://example.org/a')}</style>",
        '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml">text</p></foreignObject>',
        '<use href="javascript:alert(1)"/>',
    ],
)
def test_scripts_and_references_to_elsewhere_are_left_out(tmp_path, inside):
    text = embed_svg(write(tmp_path / "bad.svg", inside), "one", "")
    assert not re.search(r"alert|example|import|foreignObject|<script", text)


def test_text_stays_escaped_and_the_label_is_for_those_who_cannot_see(drawing):
    text = embed_svg(drawing, "one", 'scores of "<a>"')
    assert "a &lt;b&gt; c" in text
    assert 'role="img" aria-label="scores of &quot;&lt;a&gt;&quot;"' in text


def test_the_page_decides_the_size_and_knows_what_was_drawn(drawing):
    root = embed_svg(drawing, "one", "").partition(">")[0]
    assert 'viewBox="0 0 200 100"' in root
    assert "--drawn:200pt" in root
    assert not re.search(r'\b(width|height)="', root)


def test_coordinates_keep_five_digits_and_no_blanks(drawing):
    assert 'd="M0.12346 0L10 0.00012346z"' in embed_svg(drawing, "one", "")


@pytest.mark.parametrize(
    ("text", "problem"), [("<svg><g></svg>", "no whole SVG"), ("<html/>", "outermost .* <html>")]
)
def test_what_is_no_drawing_is_named(tmp_path, text, problem):
    path = tmp_path / "broken.svg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"broken\.svg.*{problem}"):
        embed_svg(path, "one", "")
