"""Pieces of the page as HTML text. Every text that comes from data is escaped here. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench import grid as grids
from bench.figures.style import DARK, LIGHT, Draw, svg
from bench.grid import Grid

CSS = Path(__file__).with_name("page.css")


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(grid: Grid, name: str) -> str:
    """The table in a region that scrolls sideways by itself and takes the keyboard's focus."""
    note = paragraph(grid.note, "note") if grid.note else ""
    return f'{note}<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{grids.html(grid)}</div>'


def figure(draw: Draw, name: str, caption: str) -> str:
    """The figure in both themes, inside the page; the reader's own setting chooses."""
    light, dark = (uri(svg(draw, theme)) for theme in (LIGHT, DARK))
    source = f'<source srcset="{dark}" media="(prefers-color-scheme: dark)">'
    image = f'<img src="{light}" alt="{escape(f"{name}. {caption}")}">'
    return f"<figure><picture>{source}{image}</picture><figcaption><b>{escape(name)}.</b> {escape(caption)}</figcaption></figure>"


def uri(data: bytes) -> str:
    """The SVG as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"


def figures(made: Sequence[str]) -> str:
    return f'<div class="figures">{"".join(made)}</div>' if made else ""


def links(names: Sequence[tuple[str, str, str]]) -> str:
    """A table of (text, address, further text)."""
    rows = "".join(
        f'<tr><td><a href="{escape(to)}">{escape(text)}</a></td><td><code>{escape(more)}</code></td></tr>' for text, to, more in names
    )
    head = '<thead><tr><th scope="col">file</th><th scope="col">seal</th></tr></thead>'
    return f'<div class="scroll" role="region" tabindex="0" aria-label="Receipts"><table>{head}<tbody>{rows}</tbody></table></div>'


def page(title: str, intro: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole document of sections (anchor, heading, body)."""
    menu = "".join(f'<li><a href="#{anchor}">{escape(heading)}</a></li>' for anchor, heading, _ in sections)
    body = "".join(f'<section id="{anchor}"><h2>{escape(heading)}</h2>{text}</section>\n' for anchor, heading, text in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS.read_text()}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#content">To the content</a>\n<header><h1>{escape(title)}</h1>{intro}'
        f'<nav aria-label="Sections"><ul>{menu}</ul></nav></header>\n<main id="content" tabindex="-1">\n{body}</main>\n'
        f"<footer>Made by <code>invoke report</code> from the receipts alone.</footer>\n</body>\n</html>\n"
    )
