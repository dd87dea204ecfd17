"""Figures, tables and self-contained pages of results; the modules below are public.

A picture is made of panels (`figures.curves`, `points`, `whiskers`, or a `Panel` of your own); a `document.Document` of headings,
paragraphs, tables and pictures is written as HTML and Markdown.
"""

from metastep.report import document, figures, tables

__all__ = ["document", "figures", "tables"]
