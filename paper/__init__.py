"""The paper's figures and tables: each a claim, measured again, with a verdict.

Everything that several ids need is computed once under OUT/runs; each id writes its figure, its numbers and its outcomes
under OUT/<id>, and OUT/results.md and OUT/results.json collect the outcomes of all ids there are.
"""

from paper.outcome import Outcome, Verdict
from paper.registry import IDS, resolve
from paper.runner import reproduce
from paper.workbench import Scale

__all__ = ["IDS", "Outcome", "Scale", "Verdict", "reproduce", "resolve"]
