"""PPO in one file of PyTorch, on CartPole-v1: a model sets the hyperparameters of every update.

A model that chooses the rate only leaves the rest at USUAL. METASTEP_EXAMPLE_QUICK=1 makes small updates. Needs the extra `sb3`.
"""

import os
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import metastep

QUICK = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))
ENVS, STEPS, UPDATES, MINIBATCH, DISCOUNT = 8, 16 if QUICK else 128, 3 if QUICK else 60, 128, 0.99
USUAL = {"stepsize": 3e-4, "gradient_steps": 32, "clip_range": 0.2, "gae_lambda": 0.95}
USUAL |= {"entropy_weight": 0.01, "critic_rate": 1.0}


def network(*sizes, gain):
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages(rewards, ends, values, gae_lambda):
    errors, found = rewards + DISCOUNT * values[1:] * (1 - ends) - values[:-1], [torch.zeros(ENVS)]
    for error, end in zip(errors.flip(0), ends.flip(0), strict=True):
        found.append(error + DISCOUNT * gae_lambda * (1 - end) * found[-1])
    return torch.stack(found[:0:-1])


def main() -> None:
    _ = torch.manual_seed(0), torch.set_num_threads(1)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.make_vec("CartPole-v1", ENVS, "sync", vector_kwargs={"autoreset_mode": mode})
    actor, critic = network(4, 64, 64, 2, gain=0.01), network(4, 64, 64, 1, gain=1.0)
    optimizer = torch.optim.Adam([{"params": actor.parameters()}, {"params": critic.parameters()}], lr=3e-4, eps=1e-5)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    model, last_update, order = metastep.load("ppo"), {}, None
    # Values of one's own, for a loop or a feature that is unlike those that the model was trained on.
    own = {name: USUAL[name] for name in model.record.hyperparameters}
    stepper = model.stepper(UPDATES, fallback=own, loop={"actions": "discrete", "num_envs": ENVS, "discount": DISCOUNT})
    state, paid, returns = torch.tensor(envs.reset(seed=0)[0]), np.zeros(ENVS), np.full(ENVS, np.nan)
    for update in range(UPDATES):
        batch = []
        for _ in range(STEPS):
            with torch.no_grad():
                action = Categorical(logits=actor(state)).sample()
            found, reward, terminated, truncated, _ = envs.step(action.numpy())
            over, paid = terminated | truncated, paid + reward
            batch.append((state, action, torch.tensor(reward).float(), torch.tensor(over).float()))
            returns, paid, state = np.where(over, paid, returns), np.where(over, 0.0, paid), torch.tensor(found)
        seen, actions, rewards, ends = map(torch.stack, zip(*batch, strict=True))
        with torch.no_grad():
            policy, values = Categorical(logits=actor(seen)), critic(torch.cat([seen, state[None]]))[..., 0]
            before = policy.log_prob(actions)

        # The model sees the batch and what the last update did, and sets everything for this one.
        targets = values[:-1] + advantages(rewards, ends, values, USUAL["gae_lambda"])
        now = np.where(np.isnan(returns), paid, returns)
        report = {"returns": now, "entropy": policy.entropy().mean(), "values": values[:-1], "targets": targets}
        chosen = USUAL | stepper(report, parameters=parameters, **last_update).values

        for group, ratio in zip(optimizer.param_groups, (1.0, chosen["critic_rate"]), strict=True):
            group["lr"] = chosen["stepsize"] * ratio
        gain = advantages(rewards, ends, values, chosen["gae_lambda"])
        rows = [each.flatten(0, 1) for each in (seen, actions, before, gain, gain + values[:-1])]
        measured, epoch = [], ENVS * STEPS // MINIBATCH
        for step in range(int(chosen["gradient_steps"])):
            order = torch.randperm(ENVS * STEPS) if step % epoch == 0 else order
            own = order[step % epoch * MINIBATCH :][:MINIBATCH]
            seen, actions, before, gain, targets = (each[own] for each in rows)
            policy, gain = Categorical(logits=actor(seen)), (gain - gain.mean()) / (gain.std() + 1e-8)
            log_ratio = policy.log_prob(actions) - before
            ratio, clip = log_ratio.exp(), chosen["clip_range"]
            loss = -torch.minimum(ratio * gain, ratio.clip(1 - clip, 1 + clip) * gain).mean()
            loss = loss - chosen["entropy_weight"] * policy.entropy().mean()
            loss = loss + 0.5 * (critic(seen)[:, 0] - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            actor_norm = nn.utils.get_total_norm([each.grad for each in actor.parameters()])
            norm, is_clipped = nn.utils.clip_grad_norm_(parameters, 0.5), (ratio - 1).abs() > clip
            optimizer.step()
            stats = (ratio - 1 - log_ratio).mean(), is_clipped.float().mean(), norm, actor_norm
            measured.append([each.item() for each in stats])
        whole, last = np.mean(measured, axis=0), np.mean(measured[-epoch:], axis=0)
        last_update = {"approx_kl": last[0], "last_clip_fraction": last[1], "gradient_steps": len(measured)}
        last_update |= {"clip_fraction": whole[1], "gradient_norm": whole[2], "actor_gradient_norm": whole[3]}
        logged = ", ".join(f"{name} {value:.3g}" for name, value in chosen.items())
        print(f"update {update + 1}: mean return {now.mean():.0f}, {logged}")


if __name__ == "__main__":
    main()
