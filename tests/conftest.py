"""Settings of every test: strict dtypes, compilations kept on disk, the same hypothesis examples each time.

They go into the environment before JAX is imported, so that the processes that tests start share them and tests that do
not need JAX do not pay for its import.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

_ROOT = Path(__file__).resolve().parent.parent

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
# Tests compile hundreds of programs and run each for milliseconds: what the compiler does not optimise, nobody waits for.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Kernels of fusions that the older emitter writes compile in a third of the time; cutting a program up pays on many cores only.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# Tests are short, and there is one process for each core: others would compile everything anew.
os.environ.setdefault("METASTEP_PATIENCE", "inf")

# A traced program is a hundred thousand objects that stay: to look through all of them for garbage every now and then is
# a sixth of the work.
gc.set_threshold(50_000, 20, 20)

settings.register_profile("metastep", deadline=None, derandomize=True, database=None)
settings.load_profile("metastep")


@pytest.fixture(scope="module", autouse=True)
def _programs_of_a_module() -> Iterator[None]:
    """Modules share few programs; those of all of them would fill gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
