"""The theory section: the Lipschitz constants with respect to the context."""

from metastep.experiments.reproduce.outcome import Outcome, Product, number
from metastep.experiments.reproduce.workbench import Workbench
from metastep.theory.reproduce import reproduce_theory


def theory(bench: Workbench) -> Product:
    """Measured differences and their bounds; it writes its own tables and figure."""
    with bench.tracker.stage("theory", 1, "table") as stage:
        found = reproduce_theory(bench.out / "theory", bench.scale, bench.seed)
        stage.advance(1)
    tightest = ", ".join(f"{name} {number(value)}" for name, value in found["tightness"].items())
    outcome = Outcome(
        environment="LQR, Nav2D",
        claim=found["claim"],
        quantity="differences beyond their bound (99 % intervals)",
        effect=float(found["num_violations"]),
        low=None,
        high=None,
        num=found["num_rows"],
        counted="differences",
        verdict=found["verdict"],
        detail=f"largest share of the bound: {tightest}",
    )
    return Product([outcome])
