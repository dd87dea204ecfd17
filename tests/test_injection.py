"""Text from elsewhere in every field that reaches HTML, Markdown, CSV or TensorBoard: it stays text. Cards are such documents.

Each output is parsed, and must have the elements of the output without payload: the same tags with the same attributes.
"""

import csv
import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from io import StringIO
from itertools import product
from typing import Any

import markdown
import pytest
from markdown_it import MarkdownIt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from metastep._core.logs import CSVLog, to_csv
from metastep.envs.contexts import ContextSpace
from metastep.evaluation.statistics import differences, differences_to_csv
from metastep.integrations.tensorboard import TensorBoardLog
from metastep.report import document
from metastep.report.compose import compose
from metastep.report.document import Command, Document, Heading, Paragraph, Picture, Table
from tests.report.test_report import compared, findings
from tests.steppers import clip_model, diagnostics

# Printable, as labels must be; some fields also get line ends and control characters.
PAYLOADS = ["<svg onload=alert(1)>", "</td></tr></table><script>alert(1)</script>", '"><img src=x onerror="alert(1)">']
PAYLOADS += ["[x](javascript:alert(1))", "![x](https://evil.example/x.png)", "[x]: javascript:alert(1)"]
PAYLOADS += ["[x][y] and [y]", "<https://evil.example> <a@evil.example>", "https://evil.example www.evil.example"]
PAYLOADS += ["`x` ```` x", "a | b \\| c \\\\| d", "*a* **b** ~~c~~ \\", "&lt;svg onload=alert(1)&gt; &#60;b&#62;"]
PAYLOADS += ["$\\frac{$", "=cmd|' /C calc'!A0", "@SUM(1+1)", "+1+cmd", "-2+3+cmd", "=1"]
LINES = ["a\n\n<svg onload=alert(1)>\n\n# b", "```\n<svg onload=alert(1)>\n```"]
LINES += ["\t=cmd", "\r=cmd", "x\x00\x1b[2J\u202e"]
PLAIN, NUMBER = "plain", re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")
FIELDS = ("environment", "command", "label", "feature", "direction", "unit", "rule", "version", "option", "prose")


class Elements(HTMLParser):
    """Lists what a page consists of: tags with their attributes, without the text that an attribute shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [(name, None if name == "alt" else value) for name, value in attrs]))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    handle_decl = handle_pi = unknown_decl = handle_comment


def rendered(text: str) -> list[Any]:
    """What two Markdown renderers make of a text; both leave HTML as it is."""
    plain = markdown.markdown(text, extensions=["tables", "fenced_code"])
    return [Elements(plain).found, Elements(MarkdownIt("commonmark").enable("table").render(text)).found]


def outputs(folder: Any, texts: dict[str, str]) -> tuple[dict[str, Any], Document]:
    """Return the structure of everything that is written of a run with these texts in its fields."""
    text = dict.fromkeys(FIELDS, PLAIN) | texts
    comparison = compared(10)
    methods = tuple(record._replace(label=text["label"] + record.label) for record in comparison.methods[:3])
    methods = (*(each._replace(rule=text["rule"]) for each in methods), comparison.methods[3])
    comparison = dataclasses.replace(comparison, methods=methods, settings={"versions": {"a": text["version"]}})
    own = findings(comparison, compare__num_resamples=10)
    (name, fitted), *_ = own.fitted.items()
    model = fitted.model
    names = tuple(f"{text['feature']}{column}" for column in model.record.feature_names)
    model = dataclasses.replace(model, record=dataclasses.replace(model.record, feature_names=names))
    config = fitted.config | {"fqi": fitted.config["fqi"] | {"regressor": {"name": "x", text["option"]: 1}}}
    space, of_model = ContextSpace(("x",), (0.0,), (1.0,), (text["unit"],)), fitted._replace(model=model, config=config)
    own = dataclasses.replace(own, name=text["environment"], command=text["command"], fitted={name: of_model})
    own = dataclasses.replace(own, context_space=space)
    report = compose(own)
    words = text["prose"]
    more = [Heading(words), Paragraph(f"a {words}"), Command(words), Table((words, "b"), [(words, words)], (1,), "t")]
    report = report._replace(subtitle=words, parts=[*report.parts, *more, Picture("p", words, lambda theme: None)])
    none = {part.name: {"svg": b"", "png": b""} for part in report.parts if isinstance(part, Picture)}
    found: dict[str, Any] = {"html": Elements(document.to_html(report, none)).found}
    found["markdown"] = rendered(document.to_markdown(report, "figures"))

    # A model that chooses between branches.
    model = clip_model()
    record = dataclasses.replace(
        model.record,
        branches=tuple(dataclasses.replace(each, name=text["direction"] + each.name) for each in model.record.branches),
        feature_names=tuple(f"{text['feature']}{index}" for index in range(len(model.record.feature_names))),
    )
    steps = [{text["direction"] + key: value for key, value in q.stepsizes.items()} for q in model.q_functions]
    pairs = zip(model.q_functions, steps, strict=True)
    model = type(model)(record, tuple(dataclasses.replace(q, stepsizes=own) for q, own in pairs))

    # Tables: the names of methods, what a stepper saw and which branch it chose.
    methods = tuple(each._replace(name=text["label"] + each.name) for each in comparison.methods)
    rows = differences(dataclasses.replace(comparison, methods=methods), num_resamples=10)
    differences_to_csv(rows, folder / "differences.csv")
    log, board = CSVLog(folder / "log.csv"), TensorBoardLog(folder / "board")
    stepper = model.stepper(20, log=lambda *row: [each(*row) for each in (log, board)])
    for update in range(2):
        stepper(diagnostics(update))
    # A log that is continued reads and writes its rows again.
    CSVLog(folder / "log.csv")(1, dict(zip(log._columns[1:], (0.5, *[text["direction"]] * 99), strict=False)))
    board.close()
    for file in ("differences.csv", "log.csv"):
        rows = list(csv.reader(StringIO((folder / file).read_text("utf-8"), newline="")))
        for cell in (cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@", "\t", "\r")):
            float(cell)
        found[file] = [len(row) for row in rows]
        if PLAIN == text["direction"] == text["label"]:
            found[f"numbers of {file}"] = [[cell for cell in row if NUMBER.fullmatch(cell)] for row in rows]
    events = EventAccumulator(str(folder / "board")).Reload()
    tags = sorted(events.Tags()["scalars"])
    assert sum(text["feature"] in tag for tag in tags) == len(model.record.feature_names)
    found["scalars"] = [[(each.step, each.value) for each in events.Scalars(tag)] for tag in tags]
    return found, report


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outputs(tmp_path_factory.mktemp("plain"), {})[0]


# Where a line of text is not required before it gets here.
IN_LINES = ("command", "feature", "unit", "version", "prose", "environment")
EVERY = [*product(FIELDS, PAYLOADS), *product(IN_LINES, LINES)]


def check(folder: Any, wanted: dict[str, Any], texts: dict[str, str]) -> None:
    found, _ = outputs(folder, texts)
    for name, structure in found.items():
        assert wanted[name] == structure, (name, texts)


@pytest.mark.parametrize("payload", PAYLOADS[::3])
def test_some_text_in_all_fields_at_once(payload: str, wanted: dict[str, Any], tmp_path: Any) -> None:
    check(tmp_path, wanted, dict.fromkeys(FIELDS, payload))


@pytest.mark.soak
@pytest.mark.parametrize(("field", "payload"), EVERY)
def test_every_text_in_every_field(field: str, payload: str, wanted: dict[str, Any], tmp_path: Any) -> None:
    check(tmp_path, wanted, {field: payload})


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_text_in_figures(payload: str, tmp_path: Any) -> None:
    def tags(texts: dict[str, str]) -> set[str]:
        folder = tmp_path / str(len(texts))
        folder.mkdir()
        report = outputs(folder, texts)[1]
        files = document.write_document(report._replace(parts=report.parts[:-1]), folder)
        elements = [each for file in files if file.suffix == ".svg" for each in ET.parse(file).iter()]
        return {each.tag for each in elements} | {name for each in elements for name in each.attrib}

    assert tags(dict.fromkeys(FIELDS, payload)) <= tags({})


def test_formulas_are_text_and_numbers_stay_numbers() -> None:
    row = ["=1", "+cmd", "-cmd", "@x", "\t=1", "-1.5", "+2e-05", "-inf", "-", -1.5, -3, "a=b", ""]
    assert to_csv([row]) == "'=1,'+cmd,'-cmd,'@x,' =1,-1.5,+2e-05,-inf,'-,-1.5,-3,a=b,\n"
