"""PPO in plain NumPy. Episodes have one step: guess a sum."""

import numpy as np

UPDATES = 30
rng, theta = np.random.default_rng(0), np.zeros(3)  # two gains, the logarithm of the standard deviation
moments, decay, made = np.zeros((2, 3)), np.array([[0.9], [0.999]]), 0
usual = {"stepsize": 3e-4, "gradient_steps": 10, "clip_range": 0.2}

for _ in range(UPDATES):
    seen, noise = rng.normal(size=(512, 2)), rng.normal(size=512)
    action = seen @ theta[:2] + np.exp(theta[2]) * noise
    reward = -((action - seen.sum(1)) ** 2)
    before, gain = -0.5 * noise**2 - theta[2], (reward - reward.mean()) / reward.std()
    values = usual
    for _ in range(values["gradient_steps"]):
        off = (action - seen @ theta[:2]) / np.exp(theta[2])
        log_ratio = -0.5 * off**2 - theta[2] - before
        ratio = np.exp(log_ratio)
        stats = {"approx_kl": np.mean(ratio - 1 - log_ratio)}
        clip = values["clip_range"]
        counts = np.where(gain > 0, ratio < 1 + clip, ratio > 1 - clip)  # where clipping leaves a slope
        slope = np.column_stack([seen * off[:, None] / np.exp(theta[2]), off**2 - 1])
        slope, made = ((gain * ratio * counts) @ slope) / len(gain), made + 1
        moments = decay * moments + (1 - decay) * np.stack([slope, slope**2])  # Adam's
        first, second = moments / (1 - decay**made)
        theta = theta + values["stepsize"] * first / (np.sqrt(second) + 1e-5)
    print(f"mean return {reward.mean():6.2f}, divergence {stats['approx_kl']:.1e}")
