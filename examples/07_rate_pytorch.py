"""PPO in PyTorch: a scheduler sets the rate of every update, for any optimizer. Episodes have one step: guess a sum."""

import torch

from metastep.integrations.pytorch import LearnedLR

UPDATES = 30


def main() -> None:
    _ = torch.manual_seed(0), torch.set_num_threads(1)
    mean, critic = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    log_std = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*mean.parameters(), *critic.parameters(), log_std], lr=3e-4, eps=1e-5)
    scheduler = LearnedLR(optimizer, "ppo-classic", UPDATES, minibatches=1)
    for _ in range(UPDATES):
        seen = torch.randn(512, 2)
        policy = torch.distributions.Normal(mean(seen), log_std.exp())
        action, value = policy.sample(), critic(seen).detach()
        reward, before = -((action - seen.sum(1, keepdim=True)) ** 2), policy.log_prob(action).detach()
        gain = (reward - value - (reward - value).mean()) / (reward - value).std()
        for epoch in range(10):
            policy = torch.distributions.Normal(mean(seen), log_std.exp())
            log_ratio = policy.log_prob(action) - before
            ratio, entropy = log_ratio.exp(), policy.entropy().mean()
            stats = {"entropy": entropy, "approx_kl": (ratio - 1 - log_ratio).mean()}
            stats["clip_fraction"] = ((ratio - 1).abs() > 0.2).float().mean()
            loss = -torch.minimum(ratio * gain, ratio.clip(0.8, 1.2) * gain).mean() - 0.001 * entropy
            loss = loss + 0.5 * (critic(seen) - reward).square().mean()
            optimizer.zero_grad()
            loss.backward()
            scheduler.step(**stats, returns=reward[-16:], values=value, targets=reward, begins=epoch == 0)
            optimizer.step()
        logged = ", ".join(f"{name} {value:.1e}" for name, value in stats.items())
        print(f"mean return {reward.mean():6.2f}, {logged}")


if __name__ == "__main__":
    main()
