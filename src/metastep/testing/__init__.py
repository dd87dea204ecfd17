"""Contract checks for parts of your own, one function for each kind.

    from metastep.testing import check_env
    check_env(MyEnv())

A check that fails raises `InputError` with one sentence that names what is wrong.
"""

from metastep.testing.envs import check_env, check_host_env
from metastep.testing.parts import check_controller, check_feature, check_policy, check_regressor, check_rule

__all__ = ["check_controller", "check_env", "check_feature", "check_host_env"]
__all__ += ["check_policy", "check_regressor", "check_rule"]
