"""Writes optimizer_steps.json: parameter and state after five steps of PyTorch's optimizers.

The numbers that go in are exact in every floating-point type and follow from their index, so that the test
makes the same ones. Run with any PyTorch from 2.4 on: python optimizer_steps.py
"""

import json
import pathlib

import torch

SHAPE, STEPS, RATE = (3, 5), 5, 0.0625


def parameter(i):
    return ((i * 7) % 11 - 5) / 8


def gradient(step, i):
    return ((i * 5 + step * 3) % 13 - 6) / 16


CASES = {
    "sgd": (torch.optim.SGD, dict()),
    "sgd_decay": (torch.optim.SGD, dict(weight_decay=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(momentum=0.9, dampening=0.25, weight_decay=0.01)),
    "sgd_nesterov": (torch.optim.SGD, dict(momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": (torch.optim.Adam, dict(betas=(0.9, 0.999), eps=1e-8)),
    "adam_decay": (torch.optim.Adam, dict(betas=(0.4, 0.95), eps=1e-6, weight_decay=0.1)),
    "adamw": (torch.optim.AdamW, dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
}
STATE = ["momentum_buffer", "exp_avg", "exp_avg_sq"]

results = {}
for name, (optimizer, options) in CASES.items():
    count = SHAPE[0] * SHAPE[1]
    p = torch.tensor([parameter(i) for i in range(count)]).reshape(SHAPE).requires_grad_()
    optimizer = optimizer([p], lr=RATE, **options)
    for step in range(STEPS):
        p.grad = torch.tensor([gradient(step, i) for i in range(count)]).reshape(SHAPE)
        optimizer.step()
    state = [optimizer.state[p].get(key) for key in STATE]
    tensors = [p] + [t for t in state if t is not None]
    results[name] = [t.detach().flatten().tolist() for t in tensors]

text = json.dumps(results).replace("]], ", "]],\n ").replace("], [", "],\n  [")
pathlib.Path(__file__).with_suffix(".json").write_text(text + "\n")
