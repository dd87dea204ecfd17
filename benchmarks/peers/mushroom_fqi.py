"""MushroomRL's FQI, as its own example uses it.

It knows discrete actions only and fits one ExtraTreesRegressor per action on the tuples with that action. So step sizes are
rounded to the grid of 101, and there are 101 forests, each of a hundredth of the tuples: another Q function, the same number of
leaves looked up for the targets.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import numpy as np
from mushroom_rl.algorithms.value import FQI
from mushroom_rl.core import MDPInfo
from mushroom_rl.policy import EpsGreedy
from mushroom_rl.utils.parameters import Parameter
from mushroom_rl.utils.spaces import Box, Discrete
from sklearn.ensemble import ExtraTreesRegressor

from common import Spent, print_record, timed
from fqi_data import NUM_STEPSIZES, SIZES, forget_peak, load_data, record_of


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("size", str), ("data", str), ("trees", int), ("threads", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    data = load_data(arguments.data)
    high = np.full(size.features, np.inf)
    agent = FQI(
        MDPInfo(Box(-high, high), Discrete(NUM_STEPSIZES), 1.0, size.updates),
        EpsGreedy(epsilon=Parameter(value=0.0)),
        ExtraTreesRegressor,
        n_iterations=1,
        approximator_params={
            "input_shape": (size.features,),
            "n_actions": NUM_STEPSIZES,
            "n_estimators": arguments.trees,
            "min_samples_split": size.min_split,
            "n_jobs": arguments.threads,
            "random_state": 0,
        },
        quiet=True,
    )
    actions = np.rint(data.stepsize / size.high * (NUM_STEPSIZES - 1)).astype(int)
    dataset = [
        (data.observation[i], actions[i : i + 1], data.reward[i], data.next_observation[i], False, False)
        for i in range(len(actions))
    ]
    agent.fit(dataset)  # the first iteration has no targets to compute

    regressor = agent.approximator
    predict, fit = regressor.predict, regressor.fit
    stages: dict[str, Spent] = {}
    values: list[np.ndarray] = []

    def timed_predict(*args: np.ndarray) -> np.ndarray:
        result, stages["target"] = timed(lambda: predict(*args))
        values.append(result.max(axis=1))
        return result

    def timed_fit(*args: np.ndarray) -> None:
        _, stages["fit"] = timed(lambda: fit(*args))

    regressor.predict, regressor.fit = timed_predict, timed_fit
    before = forget_peak()
    agent.fit(dataset)
    print_record(record_of(version("mushroom-rl"), stages["fit"], stages["target"], before, values[0]))


if __name__ == "__main__":
    main()
