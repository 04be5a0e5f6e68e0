"""Self-contained pages: one HTML file to open, mail or archive.

No links, no other files: styles are inline and figures are PNGs in base64. Reports have no scripts.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from equicolor._files import write_whole
from equicolor._text import printable
from equicolor.reporting.figures import png
from equicolor.reporting.tables import Table

_MANY_COLUMNS = 7  # tables with as many have smaller type, so that eight columns fit
_STYLE = """
:root { --ink: #1c1e21; --soft: #5b6168; --line: #d9dce0; --accent: #0072b2; --paper: #fff; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; color: var(--ink);
  background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: 1.2rem;
  border-top: 1px solid var(--line); }
p { margin: .6rem 0; max-width: 46rem; }
.lead { font-size: 1.1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.4rem 0; }
.tile { flex: 1 1 11rem; border: 1px solid var(--line); border-radius: .5rem;
  padding: .9rem 1.1rem; }
.tile strong { display: block; font-size: 1.8rem; line-height: 1.25; color: var(--accent);
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
.dense table { font-size: .84rem; }
.dense th, .dense td { padding-right: .6rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .95rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .4rem .9rem .4rem 0; text-align: left; border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .5rem; max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem;
  font-size: .88rem; color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { padding: 0; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Section:
    """A part of a report; empty attributes are left out."""

    title: str
    text: str = ""  # paragraphs, separated by blank lines
    table: Table | None = None  # below the text
    figure: Figure | bytes | None = None  # bytes of a PNG; below the table
    caption: str = ""  # what the figure shows; also its text for screen readers
    # The name of the figure's own file, without suffix. If there is a name but no figure, the text
    # says why the figure cannot be drawn.
    file: str = ""


def write_report(
    path: Path,
    title: str,
    sections: Sequence[Section],
    *,
    lead: str = "",
    numbers: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a report, whole or not at all; returns its path.

    ``lead`` is what a newcomer should know first. ``numbers`` are headline figures by their names.
    ``provenance``, from :func:`equicolor.results.provenance`, comes at the end.
    """
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="lead">{html.escape(text)}</p>' for text in _paragraphs(lead)]
    if numbers:
        tiles = (
            f'<div class="tile"><strong>{html.escape(value)}</strong>'
            f"<span>{html.escape(name)}</span></div>"
            for name, value in numbers.items()
        )
        parts.append(f'<div class="tiles">{"".join(tiles)}</div>')
    parts += map(_section, sections)
    if provenance:
        parts.append(provenance_list(provenance))
    return write_whole(path, html_page(title, parts))


def html_page(title: str, parts: Sequence[str], *, style: str = "", policy: str = "") -> str:
    """A page in the style of reports.

    Args:
        title: plain text, escaped here.
        parts: HTML of the body; the caller has escaped everything that comes from outside.
        style: CSS that comes after that of reports.
        policy: a Content-Security-Policy, which limits what the page may load; none by default.
    """
    body = "\n".join(parts)
    allowed = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    return printable(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{allowed if policy else ''}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in _paragraphs(section.text)]
    if section.table is not None:
        kind = "wide dense" if len(section.table.columns) >= _MANY_COLUMNS else "wide"
        parts.append(f'<div class="{kind}">{section.table.html()}</div>')
    if section.figure is not None:
        image = section.figure if isinstance(section.figure, bytes) else png(section.figure)
        encoded = base64.b64encode(image).decode()
        described = html.escape(section.caption or section.title, quote=True)
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>"
        parts.append(
            f'<figure><img alt="{described}" src="data:image/png;base64,{encoded}">'
            f"{caption if section.caption else ''}</figure>"
        )
    return "\n".join(parts)


def provenance_list(facts: Mapping[str, Any]) -> str:
    """Command, versions and device as a list of names and values, in HTML."""
    items = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        items.append(f"<dt>{html.escape(str(name))}</dt><dd>{html.escape(str(value))}</dd>")
    return f"<h2>How this was made</h2>\n<dl>{''.join(items)}</dl>"
