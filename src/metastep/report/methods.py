"""One paragraph on each method, with where it comes from."""

from metastep.evaluation import MethodRecord

PAPER = (
    "Sabbioni, Corda and Restelli, Stepsize Learning for Policy Gradient Methods in Contextual Markov Decision Processes, "
    "ECML PKDD 2023"
)

# By the name of the method, else by that of its controller.
_ABOUT = {
    "metastep": (
        "Learns offline, from learners that took random steps, which of several directions to follow and how far. Fitted "
        "Q-iteration values every pair of direction and step in the state of the learner; the best pair is taken. It extends "
        f"metaFQI of {PAPER}."
    ),
    "metafqi": (
        "Learns offline, from learners that took random steps along the natural gradient, which step size pays off over the "
        "next updates: fitted Q-iteration on the improvements, with trees, where state is the policy, its gradient and the "
        f"task. {PAPER}."
    ),
    "fixed": "The same step size at every update; the value is the best on the tuning tasks.",
    "fixed-kl": (
        "Every step costs the same KL divergence between the policies before and after, as in a trust region; the value is the "
        "best on the tuning tasks. Schulman, Levine, Moritz, Jordan and Abbeel, Trust Region Policy Optimization, ICML 2015."
    ),
    "kl-adaptive": (
        "A step size that follows the divergence it causes: divided by 1.5 after an update that cost more than twice a target, "
        "multiplied by 1.5 after one below half of it; target and first step are tuned. The band is that of the adaptive penalty "
        "of Schulman, Wolski, Dhariwal, Radford and Klimov, Proximal Policy Optimization Algorithms, 2017."
    ),
    "decay": "The step size falls as one over the number of updates; its start is the best on the tuning tasks.",
    "geometric-decay": "The step size shrinks by the same factor at every update; start and factor are tuned.",
    "linear-annealing": (
        "The step size falls along a line towards zero over the updates; its start is tuned. The usual choice for PPO."
    ),
    "cosine-annealing": (
        "The step size falls along half a cosine towards zero over the updates; its start is tuned. Loshchilov and Hutter, SGDR: "
        "Stochastic Gradient Descent with Warm Restarts, ICLR 2017 (without restarts)."
    ),
    "rmsprop": (
        "The gradient over a running root mean square of itself, with a tuned rate. Tieleman and Hinton, lecture 6.5 of Neural "
        "Networks for Machine Learning, 2012."
    ),
    "adam": (
        "Running means of the gradient and of its square, with a tuned rate. Kingma and Ba, Adam: A Method for Stochastic "
        "Optimization, ICLR 2015."
    ),
    "hoof": (
        "Prices many step sizes on the batch at hand by importance sampling and takes the best within a bound on the "
        "divergence. Paul, Kurin and Whiteson, Fast Efficient Hyperparameter Tuning for Policy Gradient Methods, NeurIPS 2019."
    ),
    "metagrad": (
        "Moves the step size along its own gradient: up while successive directions agree, down where they do not. After Xu, van "
        "Hasselt and Silver, Meta-Gradient Reinforcement Learning, NeurIPS 2018."
    ),
    "single": (
        "One learned step size for each task, from a regression of final returns on task and step size, kept for all updates "
        f"(appendix of {PAPER})."
    ),
    "oracle": (
        "Tries every step size on fresh episodes before each update and takes the best: what a perfect greedy choice would buy. "
        "It spends far more samples than any contender, so it is a yardstick and takes part in no test."
    ),
    "menu-oracle": (
        "The same over every direction of the menu and steps along each: what a perfect greedy choice of both would buy."
    ),
}
_BY_CONTROLLER = {"metafqi": "metafqi", "fixed": "fixed", "single-action": "single", "greedy-oracle": "oracle"}


def about(record: MethodRecord) -> str:
    """Return the paragraph on a method, or its parts where there is none."""
    own = record.name.rpartition(":")[2]
    # A baseline's rule is part of its name; under another name, only the parts are known.
    if own in _ABOUT:
        return _ABOUT[own]
    if record.controller in _ABOUT or record.controller in _BY_CONTROLLER:
        text = _ABOUT[_BY_CONTROLLER.get(record.controller, record.controller)]
        return f"{text} Here with the update rule {record.rule}."
    return f"The controller {record.controller} with the update rule {record.rule}."
