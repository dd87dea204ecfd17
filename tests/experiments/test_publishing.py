"""Models that others can take: packed, with a card."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastep import pretrained
from metastep._core import storage
from metastep._core.errors import InputError
from metastep.cli import app
from metastep.experiments import publishing
from metastep.experiments.config import list_presets, load
from metastep.fqi.model import load_model, recorded_model
from tests.disk import watch
from tests.experiments.conftest import SVG


def test_a_model_of_one_run_with_its_card(runs, tmp_path, monkeypatch):
    command = ["publish", str(runs[0].path), "--name", "tiny", "--out", str(tmp_path), "--device", "cpu"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    whole, packed = load_model(runs[0].path), load_model(tmp_path / "tiny.safetensors")
    assert packed.record.setting == whole.record.setting
    card, selected = (tmp_path / "tiny.md").read_text(), f"selected on {runs[0].config.selection.num_tasks} validation"
    scores = "## Scores on pendulum\n\n3 test tasks, with 95 % intervals."
    trained = "| pendulum | mass", "| step | 3e-05 | 0.03 | log |", "Simulated on cpu ("
    assert [words for words in (*trained, selected, scores, "| linear annealing | ") if words not in card] == []
    assert "| &#60;svg onload=alert(1)> [x]&#40;javascript:x) &#96;&#124; |" in card  # a label is text
    assert f"````\nmetastep run pendulum-ppo\n```\n{SVG}\n" in card
    first = (tmp_path / "tiny.safetensors").read_bytes()
    assert CliRunner().invoke(app, command).exit_code == 2  # the file is there
    assert CliRunner().invoke(app, [*command, "--force"], catch_exceptions=False).exit_code == 0
    assert (tmp_path / "tiny.safetensors").read_bytes() == first

    monkeypatch.setattr(pretrained, "folder", lambda: tmp_path)
    assert "tiny: ppo on pendulum, " in CliRunner().invoke(app, ["models"]).stdout
    assert CliRunner().invoke(app, ["models", "tiny"]).stdout == card
    assert pretrained.load("tiny").record == packed.record
    with pytest.raises(InputError, match="'tinny' is neither a file nor a model that comes with the library, allowed"):
        pretrained.load("tinny")


def test_a_publication_that_is_stopped_is_completed_by_the_same_command(runs, tmp_path, monkeypatch):
    """Before the model nothing has changed; after it, the old card beside the new model is refused."""
    whole, whole_card, _ = publishing.publish(runs[1], "tiny", tmp_path / "whole")
    card, model = tmp_path / "tiny.md", tmp_path / "tiny.safetensors"

    def stop_at(ending, **options):
        def around(name, call, *arguments):
            if name in ("replace", "link") and Path(arguments[1]).suffix == ending:
                raise KeyboardInterrupt
            return call(*arguments)

        with monkeypatch.context() as patch:
            watch(around, patch.setattr)
            with pytest.raises(KeyboardInterrupt):
                publishing.publish(runs[1], "tiny", tmp_path, **options)

    stop_at(".safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    stop_at(".md")
    assert model.read_bytes() == whole.read_bytes()
    assert not card.exists()
    with pytest.raises(InputError, match=r"tiny\.safetensors exists already"):  # it is another model's
        publishing.publish(runs[1], "tiny", tmp_path, trees=1)
    publishing.publish(runs[1], "tiny", tmp_path)
    assert card.read_bytes() == whole_card.read_bytes()
    with pytest.raises(InputError, match=r"tiny\.safetensors exists already"):
        publishing.publish(runs[1], "tiny", tmp_path)
    stop_at(".md", trees=1, force=True)
    with pytest.raises(InputError, match=r"does not belong to the card tiny\.md beside it, which names the SHA-256 "):
        pretrained.load(model)
    publishing.publish(runs[1], "tiny", tmp_path, trees=1, force=True)
    assert pretrained.load(model).record.regressor.options["trees"] == 1
    card.write_text("the card of version 0.2")  # would not be recognised
    stop_at(".md", force=True)
    assert not card.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.safetensors", "whole"]


def test_names_that_are_no_file_names(runs, tmp_path):
    with pytest.raises(InputError, match="must consist of letters, digits and hyphens"):
        publishing.publish(runs[0], "../tiny", tmp_path)


def test_what_comes_with_the_library_is_small_and_has_a_card():
    folder: Path = pretrained.folder()
    assert sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors") <= 5e6
    fitted = [name for name in list_presets() if load(name).learner == "fitted-q"]
    assert set(pretrained.names()) == {*fitted, "ppo"}
    for name in pretrained.names():
        assert "## Made by" in pretrained.card(name)
        assert recorded_model(folder / f"{name}.md") == storage.sha256_of(folder / f"{name}.safetensors")
        assert pretrained.load(name).stepper(30, loop={"gradient_steps": 32}).features
