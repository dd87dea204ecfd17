"""A small document: headings, paragraphs, tables, commands and figures, rendered as one HTML file or as Markdown."""

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from metastep._core import storage

# What begins HTML, code or emphasis in Markdown, a cell, or a link: its brackets, or an address.
_ACTIVE = re.compile(r"[&<\\`*~|]|(?<=\])[(:\[]|(?<=:)/(?=/)|(?<=www)\.", re.IGNORECASE)


class Heading(NamedTuple):
    """Starts a section."""

    text: str


class Paragraph(NamedTuple):
    """Plain prose."""

    text: str


class Command(NamedTuple):
    """Something to type."""

    text: str


class Table(NamedTuple):
    """Rows of text under a header; columns listed in `numeric` are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    name: str = ""


class Picture(NamedTuple):
    """A figure; `name` is its file name without ending."""

    name: str
    caption: str
    draw: Callable[[], Figure]


Part = Heading | Paragraph | Command | Table | Picture


class Document(NamedTuple):
    """What a report says, in order."""

    title: str
    subtitle: str
    parts: Sequence[Part]


Drawing = Mapping[str, bytes]  # a picture as files hold it, by their ending


def draw(picture: Picture) -> Drawing:
    """Draw a picture, as SVG and PNG."""
    figure = picture.draw()
    # Measured once, labels included: to measure is as much work as to draw.
    renderer: Any = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    box = figure.get_tightbbox(renderer).padded(0.1)

    def saved(**settings: Any) -> bytes:
        buffer = BytesIO()
        with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "metastep"}):
            figure.savefig(buffer, bbox_inches=box, **settings)
        return buffer.getvalue()

    # Without the date, so that the same data gives the same bytes; the PNG is sharp enough for a slide.
    svg = saved(format="svg", metadata={"Date": None})
    return {"svg": svg, "png": saved(format="png", dpi=160, metadata={"Software": None})}


def to_html(document: Document, drawn: Mapping[str, Drawing]) -> str:
    """Return one HTML file with styles and figures inside; `drawn` are all its pictures by name."""
    folder, lines = resources.files("metastep.report"), []
    page, style = (folder.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css"))

    def row(cells: Sequence[str], tag: str, numeric: Sequence[int]) -> str:
        marks = [" class=number" if index in numeric else "" for index in range(len(cells))]
        each = (f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))
        return f"<tr>{''.join(each)}</tr>"

    for part in document.parts:
        match part:
            case Heading(text):
                lines.append(f"<h2>{html.escape(text)}</h2>")
            case Paragraph(text):
                lines.append(f"<p>{html.escape(text)}</p>")
            case Command(text):
                lines.append(f"<pre><code>{html.escape(text)}</code></pre>")
            case Table(header, rows, numeric, name):
                identity = f' id="{html.escape(name)}"' if name else ""
                cells = "\n".join(row(each, "td", numeric) for each in rows)
                head = f'<div class="scroll"><table{identity}>\n<thead>{row(header, "th", numeric)}</thead>\n'
                lines.append(f"{head}<tbody>\n{cells}\n</tbody>\n</table></div>")
            case Picture(name, caption):
                source = f"data:image/svg+xml;base64,{base64.b64encode(drawn[name]['svg']).decode()}"
                caption = html.escape(caption)
                image = f'<div class="scroll"><img src="{source}" alt="{caption}"></div>'
                lines.append(f'<figure id="{html.escape(name)}">{image}<figcaption>{caption}</figcaption></figure>')
    title, subtitle = html.escape(document.title), html.escape(document.subtitle)
    return Template(page).substitute(title=title, subtitle=subtitle, style=style, body="\n".join(lines))


def to_markdown(document: Document, figures: str) -> str:
    """Return the document as Markdown; pictures refer to `<figures>/<name>.svg`. All that is quoted is `inert`."""
    lines = [f"# {inert(document.title)}", "", inert(document.subtitle)]
    for part in document.parts:
        lines.append("")
        match part:
            case Heading(text):
                lines.append(f"## {inert(text)}")
            case Paragraph(text):
                lines.append(inert(text))
            case Command(text):
                fence = "`" * max([3, *(1 + len(run) for run in re.findall("`+", text))])  # no run in the text ends it
                lines.append(f"{fence}\n{text}\n{fence}")
            case Table():
                marks = ["---:" if index in part.numeric else "---" for index in range(len(part.header))]
                for cells in (part.header, marks, *part.rows):
                    lines.append(f"| {' | '.join(map(inert, cells))} |")
            case Picture():
                caption = inert(inert(part.caption), re.compile(r"[][]"))
                lines += [f"![{caption}]({figures}/{part.name}.svg)", "", f"*{caption}*"]
    return "\n".join(lines) + "\n"


def inert(text: str, active: re.Pattern[str] = _ACTIVE) -> str:
    """Return text for one line or cell of Markdown: labels, names and commands may come from files of others."""
    line = "".join(each if each.isprintable() else " " for each in text).strip()
    return active.sub(lambda found: f"&#{ord(found[0])};", line)


def write_picture(picture: Picture, folder: Path, drawing: Drawing | None = None) -> list[Path]:
    """Write a picture as SVG and PNG; return the files."""
    storage.create_folder(folder)
    files = {folder / f"{picture.name}.{ending}": content for ending, content in (drawing or draw(picture)).items()}
    for path, content in files.items():
        storage.write_atomically(path, content)
    return list(files)


def write_document(document: Document, folder: Path) -> list[Path]:
    """Write the pictures as SVG and PNG under `figures/`, `report.md` and last `report.html`; return the files."""
    pictures = [part for part in document.parts if isinstance(part, Picture)]
    drawings = {picture.name: draw(picture) for picture in pictures}
    storage.create_folder(folder)
    files = [file for each in pictures for file in write_picture(each, folder / "figures", drawings[each.name])]
    for name, text in (("report.md", to_markdown(document, "figures")), ("report.html", to_html(document, drawings))):
        storage.write_atomically(folder / name, text.encode())
        files.append(folder / name)
    return files
