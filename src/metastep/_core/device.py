"""Choose the device that simulates, and check it before anything compiles."""

import os
from contextlib import suppress
from pathlib import Path

from metastep._core.errors import InputError
from metastep._core.parallel import use_cores


def prepare_jax(device: str | None) -> None:
    """Choose the device and cache compilations on disk; `device` is "cpu", "gpu" or None for JAX's choice."""
    # XLA shares large sums among its threads and rounds them accordingly: with one, all processes agree to the bit.
    os.environ["PJRT_NPROC"] = "1"
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device is not None:
        jax.config.update("jax_platforms", "cpu" if device == "cpu" else "cuda,cpu")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with suppress(RuntimeError):  # a user without a home, as in many containers: nothing is kept
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metastep" / "jax"
            jax.config.update("jax_compilation_cache_dir", str(cache))
    # Cache small programs, too: every worker process needs all of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        found = jax.devices()[0].platform
    except Exception as error:  # some backends raise, others break one of JAX's assertions
        raise _not_available(device, error) from None
    # Without CUDA, JAX silently takes the second of the two platforms.
    if device is not None and found != device:
        needs = ', a GPU needs pip install "jax[cuda12]"' if device == "gpu" else ""
        raise InputError(f"--device: {device} is not available here, JAX finds only {found}{needs}.")


def prepare_child(device: str | None, cores: int | None) -> None:
    """Prepare a worker process that may use a number of cores; None for all."""
    use_cores(cores)
    prepare_jax(device)


def share_gpu() -> None:
    """Leave GPU memory to other processes: JAX would take most of it at once."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _not_available(device: str | None, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200].rstrip(".")
    because = f": {reason}" if reason else ""
    if device is not None:
        return InputError(f"--device: {device} is not available here{because}.")
    if chosen := os.environ.get("JAX_PLATFORMS"):
        return InputError(f"JAX_PLATFORMS: {chosen} is not available here, unset it or set it to cpu{because}.")
    return InputError(f"--device: JAX finds no device to simulate on, give --device cpu{because}.")
