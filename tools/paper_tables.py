"""Extract the tables of the paper that `covist reproduce` shows: LaTeX in, src/covist/reproduce/tables/*.json out.

    python tools/paper_tables.py covist.tex            write the files
    python tools/paper_tables.py covist.tex --check    report which of them differ, and write nothing

No figure is typed by hand. This file only defines which table has which columns, and what the appendix says in words:
where the rows of other systems come from, and therefore which reference they are divided by.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent.parent / "src" / "covist" / "reproduce" / "tables"
Json = dict[str, Any]

SIX = ["gqa", "mmb", "mme", "pope", "sqa", "textvqa"]
SEVEN = [*SIX, "vqav2"]
PERCEPTION = ["mme_p" if task == "mme" else task for task in SIX]

# Appendix "Sources, coverage, and normalization": systems whose figures are not from their own paper.
REPORTED_BY = {
    **dict.fromkeys(("ToMe", "VisionZip^R", "DivPrune", "VisPruner", "HoloV"), "RESTORE"),
    **dict.fromkeys(("RESTORE+HoloV", "RESTORE+VisPruner"), "RESTORE"),
    **dict.fromkeys(("VisionZip^V", "VisionZip", "SparseVLM", "PyramidDrop", "VScan"), "VisionTrim"),
    **dict.fromkeys(("TRIM", "PruMerge+"), "CDPruner"),
    **dict.fromkeys(("DivPrune+Random", "DART+Random"), "WTR"),
    **dict.fromkeys(("Cen-Prune+DivPrune", "Cen-Prune+ZOO-Prune", "Cen-Prune+CDPruner"), "Cen-Prune + CDPruner"),
    "FasterVLM": "PruneSID",
    "FastV": "DART",
}
# Appendix "LLaVA-1.5-13B": the rows that FSR reports; the references of all other sources are the same.
REPORTED_BY_FSR = ("FSR", "CDPruner")
OWN = ("Vanilla", "CoViST-Fixed", "CoViST-Pro")


class Paper:
    """The LaTeX text, and the rows of its tables."""

    def __init__(self, text: str):
        self.text = re.sub(r"\\pro\b", r"\\method-Pro", re.sub(r"\\fixed\b", r"\\method-Fixed", text))

    def caption(self, label: str) -> str:
        before = self.text[: self.text.index(rf"\label{{{label}}}")]
        return plain(braced(before, before.rindex(r"\caption{") + len(r"\caption")))

    def number(self, label: str) -> int:
        """The number of a table, counted by captions outside figures."""
        before = self.text[: self.text.index(rf"\label{{{label}}}")]
        without_figures = re.sub(r"(?s)\\begin\{figure\*?\}.*?\\end\{figure\*?\}", "", before)
        return len(re.findall(r"\\caption\{", without_figures))

    def body(self, label: str) -> str:
        """From the label to the end of its table or minipage."""
        after = self.text[self.text.index(rf"\label{{{label}}}") :]
        ends = [after.find(end) for end in (r"\end{minipage}", r"\end{table}", r"\end{longtable}")]
        return after[: min(end for end in ends if end >= 0)]

    def rows(self, label: str) -> Iterator[list[str]]:
        """Cells of every line, as LaTeX; a heading over all columns is one cell."""
        for line in re.split(r"\\\\\*?(?:\[\w+\])?", self.body(label)):
            yield [cell.strip() for cell in line.split("&")]


def braced(text: str, start: int) -> str:
    """The text inside the braces that open at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
    raise ValueError("unbalanced braces")


def plain(text: str) -> str:
    """LaTeX as text."""
    text = re.sub(r"\\(?:midrule|toprule|bottomrule|covistrow(?:skip|full)?\b)|\\cellcolor\{\w+\}", "", text)
    text = re.sub(r"\\budgetlabel(?:ii)?(?:\[\w+\.\w+\])?\{\d+\}(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}){1,2}", "", text)
    text = re.sub(r"\$\^\{?\\d(d?)agger\}?\$", lambda found: "‡" if found[1] else "†", text)
    text = re.sub(r"\$\^\{(?:\\mathrm\{?)?\s*(\w)\}?\}\$|\\(?:tsup|textsuperscript)\{(\w+)\}", r"^\1\2", text)
    text = re.sub(r"~?\\(?:ref|citep|citet)\{[^}]*\}", "", text.replace(r"\mathrm P", "P")).replace("$^2$", "²")
    for written, meant in ((r"\method", "CoViST"), (r"\equiv", " = "), (r"\mathbf{1}", "1"), (r"\,", " "), ("~", " ")):
        text = text.replace(written, meant)
    while re.search(r"\\(?:textbf|textit|emph|underline|mathrm)\{", text):
        text = re.sub(r"\\(?:textbf|textit|emph|underline|mathrm)\{([^{}]*)\}", r"\1", text)
    text = text.replace(r"\ ", " ").replace(r"\%", "%").replace(r"\times", "x").replace("--", "-")
    return " ".join(re.sub(r"[${}]", "", text).split())


def system_of(cell: str) -> tuple[str, str | None]:
    """Name and venue."""
    found = re.search(r"\\(?:long)?methodvenue\{(.*)\}\{([^{}]*)\}", cell)
    name, venue = (found[1], found[2]) if found else (cell, None)
    return plain(name).split(",")[0], venue


def figure(cell: str) -> float | int | None:
    """A number, or None where the paper has a dash."""
    text = plain(cell)
    if text == "-":
        return None
    return float(text) if "." in text else int(text)


def budget_in(cell: str) -> int | None:
    found = re.search(r"K(?:\{=\}|=)(\d+)\$", cell)
    return int(found[1]) if found else None


def score_rows(paper: Paper, label: str, tasks: list[str], counting: bool = False) -> list[Json]:
    """Rows of figures; the budget is above them or, turned by 90 degrees, beside the last row of its block."""
    rows: list[Json] = []
    waiting: list[Json] = []  # for the budget beside the last row of their block
    budget = None
    width = 1 + counting + len(tasks) + 1
    for cells in paper.rows(label):
        if len(cells) == 1:
            budget = budget_in(cells[0]) or budget
        elif re.fullmatch(r"[\d.]+", plain(cells[-1])) and width <= len(cells) <= width + 1:
            row = score_row(cells[-width:], tasks, counting)
            rows.append(row)
            if row["system"] == "Vanilla":
                continue
            row["budget"] = budget
            waiting.append(row)
            if r"\budgetlabel" in cells[0]:
                for one in waiting:
                    one["budget"] = budget_in(cells[0])
                waiting = []
    missing = [row["system"] for row in rows if row["budget"] is None and row["system"] != "Vanilla"]
    if missing:
        raise ValueError(f"{label}: no budget for {missing}")
    return rows


def score_row(cells: list[str], tasks: list[str], counting: bool) -> Json:
    """Method, perhaps how its budget counts, one score for each task, retention."""
    name, venue = system_of(cells[0])
    row: Json = {"system": name, "venue": venue, "budget": None}
    if counting:
        row["counting"] = None if plain(cells[1]) == "-" else plain(cells[1])
    row["scores"] = dict(zip(tasks, map(figure, cells[1 + counting : -1]), strict=True))
    row["retention"] = figure(cells[-1])
    return row


def panel(paper: Paper, label: str, letter: str, last: str | None) -> Paper:
    """The paper with a table cut down to one of its panels, `(a)` for example."""
    body = paper.body(label)
    start = body.index(rf"\textbf{{({letter}) ")
    end = body.index(rf"\textbf{{({last}) ") if last else len(body)
    return Paper(paper.text.replace(body, body[: body.index("}")] + "}" + body[start:end]))


def bases(paper: Paper) -> tuple[dict[str, str], dict[str, Json]]:
    """Which base the reports of a paper are divided by (tab:source-key), and the bases (tab:external-bases)."""
    scores = {}
    for cells in paper.rows("tab:external-bases"):
        name = plain(cells[0])
        if re.fullmatch(r"B\d+", name):
            tasks = SIX if plain(cells[1]) == "PC" else PERCEPTION
            scores[name] = dict(zip(tasks, map(figure, cells[2:]), strict=True))
    lines = [[plain(cell) for cell in cells] for cells in paper.rows("tab:source-key") if len(cells) == 4]
    return {name: base for _, name, _, base in lines if base in scores}, scores


def with_references(paper: Paper, rows: list[Json]) -> tuple[list[Json], dict[str, Json]]:
    """Rows with the name of their base, the scores of the full model that they are divided by; and these bases."""
    sources, scores = bases(paper)
    for row in rows:
        name = re.sub(r"(‡|†|\^[ST])+$", "", row["system"])
        row["source"] = "own" if row["system"] in OWN else REPORTED_BY.get(name, name)
        row["reference"] = "own" if row["system"] in OWN else sources[row["source"]]
    used = sorted({row["reference"] for row in rows} & set(scores), key=lambda base: int(base[1:]))
    return rows, {name: scores[name] for name in used}


def table(paper: Paper, name: str, label: str, model: str, **more: Any) -> Json:
    caption = paper.caption(label)
    return {"name": name, "label": label, "number": paper.number(label), "caption": caption, "model": model, **more}


def main_table(paper: Paper) -> Json:
    rows, references = with_references(paper, score_rows(paper, "tab:external", SEVEN, counting=True))
    return table(paper, "main", "tab:external", "llava-1.5-7b", tasks=SEVEN, references=references, rows=rows)


def table_13b(paper: Paper) -> Json:
    """The references are in the text."""
    start = paper.text.index("FSR reports GQA")
    sentences = paper.text[start : paper.text.index("whereas we evaluate", start)]
    numbers = [figure(one) for one in re.findall(r"\d+(?:\.\d+)?", sentences.replace("VQAv2", "VQA"))]
    *six_each, vqav2 = numbers
    found = {
        "FSR": dict(zip(SEVEN, [*six_each[:6], vqav2], strict=True)),
        "others": dict(zip(SEVEN, [*six_each[6:], vqav2], strict=True)),
    }
    rows = score_rows(paper, "tab:cross-13b", SEVEN)
    for row in rows:
        row["reference"] = "own" if row["system"] in OWN else "FSR" if row["system"] in REPORTED_BY_FSR else "others"
    return table(paper, "13b", "tab:cross-13b", "llava-1.5-13b", tasks=SEVEN, references=found, rows=rows)


def table_next(paper: Paper) -> Json:
    """A row was reported by ZOO-Prune if it has the six scores of that panel; other references are not given."""
    zoo = next(cells for cells in paper.rows("tab:cross-model-bases") if cells[0].endswith("ZOO-Prune (MME-PC)"))
    reported = score_rows(panel(paper, "tab:external-next", "a", "b"), "tab:external-next", SIX)
    known = [(row["system"], row["scores"]) for row in reported]
    rows = score_rows(paper, "tab:cross-next", SEVEN, counting=True)
    for row in rows:
        is_zoo = (row["system"], {task: row["scores"][task] for task in SIX}) in known
        row["reference"] = "own" if row["system"] in OWN else "ZOO-Prune" if is_zoo else None
    references = {"ZOO-Prune": dict(zip(SIX, map(figure, zoo[1:]), strict=True))}
    return table(paper, "next", "tab:cross-next", "llava-next-7b", tasks=SEVEN, references=references, rows=rows)


def table_qwen(paper: Paper) -> Json:
    """The references of the sources are not given."""
    tasks = [*SEVEN, "mmb_cn"]
    rows = score_rows(paper, "tab:cross-qwen", tasks)
    for row in rows:
        row["reference"] = "own" if row["system"] in OWN else None
    return table(paper, "qwen", "tab:cross-qwen", "qwen2.5-vl-7b", tasks=tasks, references={}, rows=rows)


def components(paper: Paper) -> Json:
    """One row per configuration and budget; the paper gives only their retention."""
    rows: list[Json] = []
    head, *lines = [cells for cells in paper.rows("tab:components") if len(cells) == 5]
    for place in (2, 3, 4):
        for cells in lines:
            name = f"{plain(cells[0])} {plain(cells[1])}"
            rows.append({"system": name, "venue": None, "budget": budget_in(head[place]), "scores": {}})
            rows[-1].update(retention=figure(cells[place]), reference="own")
    return table(paper, "components", "tab:components", "llava-1.5-7b", tasks=SIX, references={}, rows=rows)


def appendix(paper: Paper, name: str, label: str, tasks: list[str], letter: str, last: str | None) -> Json:
    rows, references = with_references(paper, score_rows(panel(paper, label, letter, last), label, tasks))
    more = {"panel": letter, "tasks": tasks, "references": references, "rows": rows}
    return table(paper, name, label, "llava-1.5-7b", **more)


def efficiency(paper: Paper) -> Json:
    """Both panels of the full measurements, one row for each method and budget."""
    first = ["mean_tokens", "ttft_ms", "prefill_ms", "generation_ms", "speedup", "tokens_per_second"]
    second = ["tflops", "peak_gib", "kv_mib"]
    rows: dict[tuple[str, int | None], Json] = {}
    for cells in paper.rows("tab:efficiency-next"):
        names, name = {8: first, 5: second}.get(len(cells)), plain(cells[0])
        if names is not None and name in OWN:
            budget = None if plain(cells[1]) == "All" else int(cells[1])
            row = rows.setdefault((name, budget), {"system": name, "budget": budget, "figures": {}})
            row["figures"].update(zip(names, (float(plain(cell).rstrip("x")) for cell in cells[2:]), strict=True))
    label, columns = "tab:efficiency-next", [*first, *second]
    return table(paper, "efficiency", label, "llava-next-7b", columns=columns, rows=list(rows.values()))


def extract(paper: Paper) -> list[Json]:
    fixed, inside = "tab:external-fixed-full", "tab:external-pro-full"
    return [
        main_table(paper),
        table_13b(paper),
        table_next(paper),
        table_qwen(paper),
        components(paper),
        efficiency(paper),
        appendix(paper, "fixed", fixed, SIX, "a", "b"),
        appendix(paper, "fixed-p", fixed, PERCEPTION, "b", None),
        appendix(paper, "layers", inside, SIX, "a", "b"),
        appendix(paper, "after", inside, SIX, "b", "c"),
        appendix(paper, "layers-p", inside, PERCEPTION, "c", "d"),
    ]


def written(found: Json) -> str:
    """JSON with a row on each line, so that it can be read beside the paper."""
    head = {key: value for key, value in found.items() if key != "rows"}
    lines = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in found["rows"])
    return json.dumps(head, indent=2, ensure_ascii=False)[:-2] + f',\n  "rows": [\n    {lines}\n  ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paper", type=Path)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    options = parser.parse_args()
    differ = []
    for found in extract(Paper(options.paper.read_text(encoding="utf-8"))):
        path, text = TABLES / f"{found['name']}.json", written(found)
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            differ.append(path.name)
    print("\n".join(f"{name} differs from the paper" for name in differ) or "all tables agree with the paper")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
