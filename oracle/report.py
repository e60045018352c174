"""The document of ``kvoracle check`` in the forms that CI systems and people read.

All of them are made of the one document that ``--json`` writes.  JUnit: a suite for each column of
the table, a case for each property.  SARIF 2.1.0 (OASIS): a rule for each property, a result for
each finding.  HTML: the table and the findings, one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any
from xml.etree import ElementTree

from . import page

Document = dict[str, Any]

TOOL = "kvoracle"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _bad(cell: str) -> bool:
    return cell.startswith(("BROKEN", "NOT PROVED"))


def _columns(document: Document) -> Iterator[tuple[str, dict[str, str]]]:
    """Each column of the table: its name, and the cell of each property that it speaks of."""
    rows: dict[str, Any] = document["properties"]
    yield "for all sizes", {n: "proved" if r["proved"] else "NOT PROVED"
                            for n, r in rows.items() if r["proved"] is not None}
    yield "explored", {
        n: "holds" if all(r["explored"].values()) else "BROKEN in " + ", ".join(
            s for s, holds in r["explored"].items() if not holds)
        for n, r in rows.items() if r["explored"]}
    for engine in document["engines"]:
        name = engine["engine"]
        yield name, {n: r["engines"][name] for n, r in rows.items()
                     if r["engines"].get(name, "-") != "-"}


def _findings(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    for engine in document["engines"]:
        for finding in engine.get("findings", ()):
            yield engine["engine"], finding


def _message(finding: dict[str, Any]) -> str:
    what = finding["property"] or finding["kind"]
    return f"{finding['engine']} breaks {what} because {finding['because']}"


def junit(document: Document) -> str:
    """JUnit XML: what is broken fails, what could not be judged is skipped."""
    suites = ElementTree.Element("testsuites", name=TOOL)
    for column, cells in _columns(document):
        suite = ElementTree.SubElement(suites, "testsuite", name=column)
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        told = {f["property"] or f["kind"]: f"{_message(f)}\n{f['replay']}".rstrip()
                for engine, f in _findings(document) if engine == column}
        # What is found of no property has no row in the table.
        others = {name: "BROKEN" for name in told if name not in cells}
        for name, cell in {**cells, **others}.items():
            case = ElementTree.SubElement(suite, "testcase", name=name, classname=column)
            counts["tests"] += 1
            if _bad(cell):
                counts["failures"] += 1
                failure = ElementTree.SubElement(case, "failure", message=_plain(cell))
                failure.text = _plain(told.get(name, cell))
            elif cell.startswith("not "):
                counts["skipped"] += 1
                ElementTree.SubElement(case, "skipped", message=_plain(cell))
        for name, n in counts.items():
            suite.set(name, str(n))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' \
        + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _plain(text: str) -> str:
    """Without characters that no XML may have."""
    return "".join(c for c in text if c in "\n\t" or c >= " ")


def sarif(document: Document) -> str:
    """SARIF 2.1.0, for code scanning: each finding with the run that shows it."""
    found = list(_findings(document))
    names = list(dict.fromkeys(f["property"] or f["kind"] for _, f in found))
    rules = []
    for name in names:
        one = next(f for _, f in found if (f["property"] or f["kind"]) == name)
        rules.append({"id": name, "shortDescription": {"text": one["statement"] or name},
                      "fullDescription": {"text": one["why"] or one["statement"] or name}})
    results = []
    for engine, f in found:
        name = f["property"] or f["kind"]
        place = f["file"] or "kvoracle-findings"
        results.append({
            "ruleId": name, "ruleIndex": names.index(name),
            "level": "note" if f["acceptance"] else "error",
            "message": {"text": _message(f) + (f". {f['replay']}" if f["replay"] else "")},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": place}}}],
            "partialFingerprints": {"kvoracle/v1": f"{engine}/{name}/{f['at'] or f['rule']}"},
        })
    return json.dumps({
        "$schema": SARIF_SCHEMA, "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": TOOL, "rules": rules}}, "results": results}],
    }, indent=1) + "\n"


def html(document: Document) -> str:
    """One page: the table, then each finding with its run."""
    columns = list(_columns(document))
    names = document["properties"]
    rows = [[name, *((cells.get(name, "-"), _kind(cells.get(name, "-")))
                     for _, cells in columns)] for name in names]
    verdict = {0: "holds", 1: "VIOLATED"}.get(document["exit_code"],
                                              "not everything could be judged")
    body = [f"<p><strong>Verdict: {verdict}</strong></p>",
            page.grid(["property", *(column for column, _ in columns)], rows)]
    for engine, f in _findings(document):
        body.append(f"<h2>{escape(engine)}: {escape(f['property'] or f['kind'])}</h2>")
        body.append(f"<p>{escape(_message(f))}</p>")
        body.append(page.grid(["step", "action", "what matters"], (
            [str(r["number"]), r["done"], "; ".join(r["seen"])] for r in f["rows"])))
        if f["replay"]:
            body.append(f"<pre>{escape(f['replay'])}</pre>")
    return page.document("kvoracle check", body)


def _kind(cell: str) -> str:
    return "bad" if _bad(cell) else "grey" if cell == "-" or cell.startswith("not ") else "good"


FORMS = {"junit": junit, "sarif": sarif, "html": html}
"""By the option that asks for each."""
