"""Figures, tables and self-contained pages of results; the names below are public.

A picture is made of panels (`curves`, `points`, `whiskers`, or a `Panel` of your own); a `Document` of
headings, paragraphs, tables and pictures is written as HTML and Markdown.
"""

from metastep.report.document import (
    Command,
    Document,
    Heading,
    Paragraph,
    Part,
    Picture,
    Table,
    to_html,
    to_markdown,
    write_document,
    write_picture,
)
from metastep.report.figures import (
    CONTRAST,
    MAIN,
    Ink,
    Layout,
    Line,
    Panel,
    Shade,
    alone,
    curves,
    in_rows,
    ink_of,
    label_lines,
    line_of,
    picture,
    plain,
    points,
    tint,
    whiskers,
)
from metastep.report.tables import comparison_table, differences_table, interval, number, target_of, tuning_table

__all__ = ["Command", "Document", "Heading", "Paragraph", "Part", "Picture", "Table"]
__all__ += ["to_html", "to_markdown", "write_document", "write_picture"]
__all__ += ["CONTRAST", "MAIN", "Ink", "Layout", "Line", "Panel", "Shade"]
__all__ += ["alone", "curves", "in_rows", "ink_of", "label_lines", "line_of", "picture", "plain", "points", "tint"]
__all__ += ["comparison_table", "differences_table", "interval", "number", "target_of", "tuning_table", "whiskers"]
