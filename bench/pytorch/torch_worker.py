"""Training steps of PyTorch on one batch, timed, on request: the other side of halfnote-steps.

    torch_worker.py MODEL PRECISION THREADS eager|compiled ATTENTION

Prints a line of JSON when it is ready, then for each line `N` on its input one with the seconds and
losses of N steps.
"""
import json
import sys
import time

import torch

import models


def make_optimizer(model, parameters):
    if model.optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=model.lr, momentum=0.9, fused=True)
    return torch.optim.AdamW(parameters, lr=model.lr, weight_decay=models.WEIGHT_DECAY, fused=True)


def make_step(name, precision, compiled, attention):
    model = models.MODELS[name]
    module, (x, labels) = models.make(name, attention)
    if model.channels_last:
        module = module.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, module.parameters())
    run = torch.compile(module) if compiled else module

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = run(x, labels)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def main(name, precision, threads, how, attention):
    torch.set_num_threads(int(threads))
    step = make_step(name, precision, how == "compiled", attention)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            begin = time.perf_counter()
            losses.append(step())
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
