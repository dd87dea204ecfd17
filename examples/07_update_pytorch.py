"""PPO in PyTorch: a scheduler sets the rate of every update, and has the other values. Episodes have one step: guess a sum."""

import torch

from metastep.integrations.pytorch import LearnedLR

UPDATES = 30
usual = {"gradient_steps": 10, "clip_range": 0.2, "entropy_weight": 1e-3, "gae_lambda": 0.95}  # besides the rate


def main() -> None:
    _ = torch.manual_seed(0), torch.set_num_threads(1)
    mean, critic = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    log_std = torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": [*mean.parameters(), log_std]}, {"params": critic.parameters(), "name": "critic"}]
    optimizer = torch.optim.Adam(groups, lr=3e-4, eps=1e-5)
    scheduler, stats = LearnedLR(optimizer, "ppo", UPDATES, reads=usual), {}
    for _ in range(UPDATES):
        seen = torch.randn(512, 2)
        policy = torch.distributions.Normal(mean(seen), log_std.exp())
        action, value = policy.sample(), critic(seen).detach()
        reward, before = -((action - seen.sum(1, keepdim=True)) ** 2), policy.log_prob(action).detach()
        gain = (reward - value - (reward - value).mean()) / (reward - value).std()
        scheduler.step(**stats, returns=reward[-16:])
        values = scheduler.values
        for _ in range(values["gradient_steps"]):
            policy = torch.distributions.Normal(mean(seen), log_std.exp())
            log_ratio = policy.log_prob(action) - before
            ratio, stats = log_ratio.exp(), {"approx_kl": (log_ratio.exp() - 1 - log_ratio).mean()}
            clipped = ratio.clip(1 - values["clip_range"], 1 + values["clip_range"])
            loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            loss = loss - values["entropy_weight"] * policy.entropy().mean()
            loss = loss + 0.5 * (critic(seen) - reward).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"mean return {reward.mean():6.2f}, divergence {stats['approx_kl']:.1e}")


if __name__ == "__main__":
    main()
