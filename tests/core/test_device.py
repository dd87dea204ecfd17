"""The requested device simulates, or one sentence says why not."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from metastep._core.errors import InputError
from metastep._core.parallel import prepare_jax
from tests.processes import metastep


@pytest.fixture
def fake_jax(monkeypatch):
    """Install a JAX that takes every setting and finds these platforms, or fails."""

    def install(*found):
        def devices():
            if isinstance(found[0], Exception):
                raise found[0]
            return [SimpleNamespace(platform=platform) for platform in found]

        monkeypatch.setattr(jax.config, "update", lambda *_: None)
        monkeypatch.setattr(jax, "devices", devices)

    return install


def test_the_requested_device_is_accepted_and_another_one_refused(fake_jax):
    for device, found in (("gpu", "gpu"), ("cpu", "cpu"), (None, "cpu"), (None, "gpu")):
        fake_jax(found)
        prepare_jax(device)
    fake_jax("cpu")
    with pytest.raises(InputError, match=r"^--device: gpu is not available here, JAX finds only cpu, .*jax\[cuda12\]"):
        prepare_jax("gpu")
    fake_jax("gpu", "cpu")
    with pytest.raises(InputError, match=r"^--device: cpu is not available here, JAX finds only gpu\.$"):
        prepare_jax("cpu")


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no\nbackend.")])
def test_a_backend_that_does_not_start_is_one_sentence(fake_jax, monkeypatch, error):
    fake_jax(error)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(InputError, match=r"^JAX_PLATFORMS: cuda is not available here, .*[^.]\.$"):
        prepare_jax(None)
    with pytest.raises(InputError, match=r"^--device: gpu is not available here(: .*[^.])?\.$"):
        prepare_jax("gpu")
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(InputError, match=r"^--device: JAX finds no device"):
        prepare_jax(None)


def test_the_command_line_refuses_and_leaves_no_folder(tmp_path):
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    done = metastep("run", "minigolf", "--device", "gpu", "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: --device: gpu is not available here")
    assert not (tmp_path / "run").exists()


POOL = """
import os
from pathlib import Path
from metastep._core import parallel

parallel._available = lambda: 4
parallel.use_cores(2)
parallel.prepare_jax("cpu")
import jax.numpy as jnp
jnp.ones(3).block_until_ready()
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(os.environ["PJRT_NPROC"], sum(name.startswith("tf_XLAEigen") for name in names))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted by their names in /proc")
def test_xla_has_one_thread_whatever_the_number_of_cores():
    command = [sys.executable, "-c", POOL]
    done = subprocess.run(command, env=os.environ | {"PJRT_NPROC": "2"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
