"""The device that was asked for is the one that simulates, or one sentence says why not."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from metastep._core.device import prepare_jax
from metastep._core.errors import InputError


@pytest.fixture
def fake_jax(monkeypatch):
    """A JAX that takes every setting and finds what `find` returns."""

    def install(find):
        monkeypatch.setattr(jax.config, "update", lambda *_: None)
        monkeypatch.setattr(jax, "devices", find)

    return install


def finds(*platforms):
    return lambda: [SimpleNamespace(platform=platform) for platform in platforms]


def fails(error):
    def devices():
        raise error

    return devices


@pytest.mark.parametrize(("device", "found"), [("gpu", "gpu"), ("cpu", "cpu"), (None, "cpu"), (None, "gpu")])
def test_the_device_asked_for_is_accepted(fake_jax, device, found):
    fake_jax(finds(found))
    prepare_jax(device)


def test_a_silent_fall_back_is_refused(fake_jax):
    fake_jax(finds("cpu"))
    with pytest.raises(InputError, match=r"^--device: gpu is not available here, JAX finds only cpu, .*jax\[cuda12\]"):
        prepare_jax("gpu")
    fake_jax(finds("gpu", "cpu"))
    with pytest.raises(InputError, match=r"^--device: cpu is not available here, JAX finds only gpu\.$"):
        prepare_jax("cpu")


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no\nbackend."), ValueError("odd")])
def test_a_backend_that_does_not_start_is_one_sentence(fake_jax, monkeypatch, error):
    fake_jax(fails(error))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(InputError, match=r"^JAX_PLATFORMS: cuda is not available here, .*[^.]\.$"):
        prepare_jax(None)
    with pytest.raises(InputError, match=r"^--device: gpu is not available here(: .*[^.])?\.$"):
        prepare_jax("gpu")
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(InputError, match=r"^--device: JAX finds no device"):
        prepare_jax(None)


def metastep(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "metastep", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_the_command_line_refuses_and_leaves_no_folder(tmp_path):
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    done = metastep("run", "minigolf", "--device", "gpu", "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: --device: gpu is not available here")
    unknown = metastep("run", "minigolf", "--out", str(tmp_path / "run"), JAX_PLATFORMS="cuda")
    assert unknown.returncode == 2, unknown.stderr
    assert unknown.stderr.startswith("error: JAX_PLATFORMS: cuda is not available here")
    assert not (tmp_path / "run").exists()


def test_the_list_of_environments_needs_no_device():
    listed = metastep("envs", JAX_PLATFORMS="cuda")
    assert listed.returncode == 0, listed.stderr
    assert "minigolf" in listed.stdout


POOL = """
import os
from pathlib import Path
from metastep._core import parallel
from metastep._core import device

parallel._available = lambda: 4
{prepare}
import jax.numpy as jnp
jnp.ones(3).block_until_ready()
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(os.environ["PJRT_NPROC"], sum(name.startswith("tf_XLAEigen") for name in names))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted by their names in /proc")
@pytest.mark.parametrize(
    ("prepare", "inherited"),
    [("parallel.use_cores(2); device.prepare_jax('cpu')", {}), ("device.prepare_child('cpu', 2)", {"PJRT_NPROC": "4"})],
)
def test_xla_has_one_thread_for_sums_however_many_cores_are_given(prepare, inherited):
    kept = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    done = subprocess.run(
        [sys.executable, "-c", POOL.format(prepare=prepare)],
        env=kept | inherited,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "1"]
