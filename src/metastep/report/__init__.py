"""Figures and the self-contained page that shows what an experiment found."""
