"""Results as pages: one file each, nothing to be fetched, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .explain import ROWS_SEEN, Explanation, at_fault, headline
from .picture import Picture, svg

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1b1b; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } td, th { border: 1px solid #ccc;
  padding: .3rem .6rem; text-align: left; vertical-align: top } th { background: #f3f3f3 }
code, pre { background: #f3f3f3; padding: .1rem .3rem; overflow-x: auto }
.bad { background: #fbdcd9 } .good { background: #dff2e0 } .grey { color: #777 }
.wrong { background: #ffe9a8 } svg { max-width: 100%; height: auto }
"""


def document(title: str, body: Iterable[str]) -> str:
    """A whole page."""
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>", *body, "</body></html>", ""])


Cell = tuple[str, str]
"""Text and class of a cell."""


def grid(header: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """A table; a cell may name its class."""
    lines = ["<table><thead><tr>", *(f'<th scope="col">{escape(h)}</th>' for h in header),
             "</tr></thead><tbody>"]
    for row in rows:
        lines.append("<tr>")
        for cell in row:
            text, kind = (cell, "") if isinstance(cell, str) else cell
            mark = f' class="{kind}"' if kind else ""
            lines.append(f"<td{mark}>{escape(text)}</td>")
        lines.append("</tr>")
    return "".join([*lines, "</tbody></table>"])


def finding(x: Explanation, picture: Picture | None = None, missed: str = "") -> str:
    """The page of one finding."""
    return document(headline(x).partition(" because ")[0], finding_parts(x, picture, missed))


def finding_parts(x: Explanation, picture: Picture | None = None, missed: str = "") -> list[str]:
    """The sections of a finding, in the order in which somebody asks."""
    parts = [f"<p><strong>{escape(headline(x))}.</strong> {escape(at_fault(x))}</p>"]
    if x.behaves_like:
        like = x.behaves_like[0]
        parts.append(f"<p>It behaves like the design <code>{escape(like.variant)}</code>: it seems "
                     f"to lack {escape(like.lacks)}.</p>")
    if x.at:
        parts.append(f"<p>It died at <code>{escape(x.at)}</code></p>")
    if x.statement:
        parts.append(f"<h2>{escape(x.property)}</h2><p>{escape(x.statement)}. {escape(x.why)}</p>")
    parts.append(f"<h2>The run</h2><p>{escape(x.minimal)}</p>")
    parts.append(grid(["step", "action", "what matters"],
                      ([str(r.number), r.done, "; ".join(r.seen[-ROWS_SEEN:])] for r in x.rows)))
    if x.replay:
        parts.append(f"<h2>See it again</h2><pre>{escape(x.replay)}</pre>")
    if missed:
        parts.append(f"<p>{escape(missed)}</p>")
    if picture is not None:
        parts.append(svg(picture))
    return parts
