"""The paper's figures and tables: each is a claim, what was measured, and a verdict. It uses the public API of metastep only.

`python -m paper reproduce fig2` computes what several ids need once, under OUT/runs; each id writes its figure, its numbers and
its outcomes to OUT/<id>, and OUT/results.md and OUT/results.json collect the outcomes of all ids.
"""
