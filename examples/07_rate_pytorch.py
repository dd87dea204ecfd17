"""PPO in PyTorch: a scheduler sets the rate of every update, for any optimizer. Episodes of one step: guess a sum."""

import os

import torch

from metastep.integrations.pytorch import LearnedLR

MODEL, UPDATES = os.environ.get("METASTEP_MODEL", "ppo-classic"), 30


def main() -> None:
    _ = torch.manual_seed(0), torch.set_num_threads(1)
    mean, critic = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    log_std = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*mean.parameters(), *critic.parameters(), log_std], lr=3e-4, eps=1e-5)
    scheduler = LearnedLR(optimizer, MODEL, UPDATES)
    last = {}
    for _ in range(UPDATES):
        seen = torch.randn(512, 2)
        policy = torch.distributions.Normal(mean(seen), log_std.exp())
        action, value = policy.sample(), critic(seen).detach()
        reward, before = -((action - seen.sum(1, keepdim=True)) ** 2), policy.log_prob(action).detach()
        told = {"returns": reward[:16], "entropy": policy.entropy().mean(), "values": value, "targets": reward, **last}
        scheduler.step(**told)
        gain = (reward - value - (reward - value).mean()) / (reward - value).std()
        for _ in range(10):
            log_ratio = torch.distributions.Normal(mean(seen), log_std.exp()).log_prob(action) - before
            ratio = log_ratio.exp()
            loss = -torch.minimum(ratio * gain, ratio.clip(0.8, 1.2) * gain).mean()
            loss = loss + 0.5 * (critic(seen) - reward).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        last = {"approx_kl": (ratio - 1 - log_ratio).mean(), "clip_fraction": ((ratio - 1).abs() > 0.2).float().mean()}
        print(f"mean return {reward.mean():6.2f}, rate {scheduler.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    main()
