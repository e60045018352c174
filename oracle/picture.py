"""A run as a picture: one request's counts in chunks as they change, as data and as SVG.

Planning is right as long as the cursor stays at or below what tokens, blocks and keys allow; most
faults show as one of the four lines crossing another.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from . import events as e
from . import words
from .session import Outcome

LINES = (("tokens", "#4269d0", ""), ("blocks", "#3ca951", "6 3"), ("keys", "#efb118", "2 3"),
         ("cursor", "#ff725c", ""))
WIDTH, ROW, LEFT, TOP = 760, 26, 46, 34


@dataclass(frozen=True)
class Picture:
    """``lines``: by name, the chunks after each change, all of one length; ``marks``: each
    stimulus in words, with the place in the lines where it begins."""

    title: str
    request: str
    group: int
    lines: dict[str, list[int]]
    marks: list[tuple[int, str]]
    failed: str

    def to_json(self) -> dict[str, Any]:
        """The picture as plain data."""
        return asdict(self)


def draw(outcome: Outcome) -> Picture:
    """The picture of a run's finding."""
    finding = outcome.finding
    assert finding is not None
    r = finding.r or next((s.r for s in outcome.stimuli if isinstance(s, e.Arrive)), "")
    g = finding.chunk[0] if finding.chunk is not None else 0
    size, per = outcome.config.tokens_per_chunk(g), outcome.config.blocks_per_chunk
    now = dict.fromkeys((name for name, _, _ in LINES), 0)
    lines = {name: [0] for name in now}
    marks = []
    for stimulus, seen in outcome.log:
        marks.append((len(lines["tokens"]) - 1, words.stimulus(stimulus)))
        for o in (*seen, None):  # each stimulus takes its place, whether or not anything changes
            before = dict(now)
            if o is not None and getattr(o, "r", None) == r and getattr(o, "g", g) == g:
                _count(now, o, size, per)
            if now != before or o is None:
                for name, n in now.items():
                    lines[name].append(n)
    return Picture(f"{outcome.engine}: {finding.property or finding.kind}", r, g, lines, marks,
                   finding.because)


def _count(now: dict[str, int], o: e.AnyObservation, size: int, per: int) -> None:
    """What an observation of the request says of its counts."""
    if isinstance(o, e.Computed):
        now["tokens"] = o.n // size
    elif isinstance(o, e.BlocksKnown):
        now["blocks"] = o.n // per
    elif isinstance(o, e.KeysKnown):
        now["keys"] = o.n
    elif isinstance(o, e.Cursor):
        now["cursor"] = o.n
    elif isinstance(o, e.Preempted):
        now["tokens"] = now["blocks"] = 0


def svg(p: Picture) -> str:
    """The picture as one SVG document, readable on light and on dark ground."""
    steps = len(p.lines["tokens"]) - 1
    high = max(1, *(max(line) for line in p.lines.values()))
    width = max(WIDTH, LEFT * 2 + steps * 18)
    plot = 190
    foot = TOP + plot + 30
    height = foot + ROW * (len(p.marks) + 2)

    def x(i: float) -> float:
        return LEFT + i * (width - 2 * LEFT) / max(1, steps)

    def y(n: float) -> float:
        return TOP + plot - n * plot / high

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" role="img" font-family="sans-serif" '
           f'font-size="12">',
           f"<title>{escape(p.title)}</title>",
           f'<rect width="{width}" height="{height}" fill="#fff"/>',
           f'<text x="{LEFT}" y="16" font-weight="bold">request {escape(p.request)}, group '
           f"{p.group}: chunks</text>"]
    for n in range(high + 1):
        if high <= 12 or n % (high // 8) == 0:
            out.append(f'<line x1="{LEFT}" x2="{width - LEFT}" y1="{y(n):.1f}" y2="{y(n):.1f}" '
                       f'stroke="#ddd"/><text x="{LEFT - 8}" y="{y(n) + 4:.1f}" '
                       f'text-anchor="end">{n}</text>')
    for i, (name, colour, dashes) in enumerate(LINES):
        shift = (i - 1.5) * 2  # lines that lie on each other are told apart
        points = []
        for k, n in enumerate(p.lines[name]):
            if k:
                points.append(f"{x(k):.1f},{y(p.lines[name][k - 1]) + shift:.1f}")
            points.append(f"{x(k):.1f},{y(n) + shift:.1f}")
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2.5"{dash} '
                   f'points="{" ".join(points)}"/>')
        left = LEFT + 230 + i * 110
        out.append(f'<line x1="{left}" x2="{left + 24}" y1="12" y2="12" stroke="{colour}" '
                   f'stroke-width="2.5"{dash}/><text x="{left + 30}" y="16">{name}</text>')
    for number, (at, _) in enumerate(p.marks, 1):
        out.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{TOP + plot}" '
                   f'stroke="#eee"/><text x="{x(at) + 3:.1f}" y="{TOP + plot + 18}">{number}'
                   "</text>")
    out.append(f'<line x1="{x(steps):.1f}" x2="{x(steps):.1f}" y1="{TOP}" y2="{TOP + plot}" '
               f'stroke="#c00" stroke-width="1.5"/>')
    for i, (_, said) in enumerate(p.marks):
        out.append(f'<text x="{LEFT}" y="{foot + ROW * (i + 0.8):.0f}">{i + 1}.  '
                   f"{escape(_short(said))}</text>")
    out.append(f'<text x="{LEFT}" y="{foot + ROW * (len(p.marks) + 0.8):.0f}" fill="#c00">'
               f"{escape(_short(p.failed))}</text>")
    return "\n".join([*out, "</svg>", ""])


def _short(text: str, most: int = 105) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."
