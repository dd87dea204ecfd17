"""metastep learns the step size of policy-gradient methods over families of related tasks."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("metastep")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"
