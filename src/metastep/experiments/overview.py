"""What there is to run: environments, contexts, presets."""

from rich.console import Console
from rich.table import Table

from metastep import envs
from metastep.experiments.config import list_presets, load


def print_overview() -> None:
    """Print one row for each environment."""
    presets: dict[str, list[str]] = {}
    for preset in list_presets():
        presets.setdefault(load(preset, None, []).env.name, []).append(preset)
    table = Table(title="Environments", title_justify="left")
    for heading in ("name", "context (uniform over)", "observations", "actions", "presets"):
        table.add_column(heading)
    for name in envs.names():
        env = envs.make(name)
        space = env.context_space
        contexts = "\n".join(
            f"{coordinate} [{low:g}, {high:g}] {unit}".rstrip()
            for coordinate, low, high, unit in zip(space.names, space.low, space.high, space.units, strict=True)
        )
        choices = envs.choices_of(env)
        actions = str(env.num_actions) if choices is None else f"one of {choices}"
        table.add_row(name, contexts, str(env.num_observations), actions, "\n".join(presets.get(name, ())))
    console = Console()
    console.print(table)
    console.print("Run a preset with: metastep run PRESET --scale quick", highlight=False)
