"""Data-parallel training of a small network on scikit-learn's handwritten digits, replicated and sharded, every rule.

    python examples/train_digits.py --ranks 1,2,4
    multiring launch -n 4 -- python examples/train_digits.py --rule adam

The second form trains on the ranks that it finds itself on (mpiexec and torchrun will do too). Every rank works on its
part of each batch; gradients are handed in as the backward pass makes them. Prints, for each rule: the loss, the
accuracy on the test set, the time of a step and the bytes of optimizer state per rank.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import multiring as mr

Arrays = dict[str, NDArray[np.float32]]

RULES: dict[str, Any] = {
    "sgd": mr.optim.SGD(lr=0.2, momentum=0.9, nesterov=True),
    "adam": mr.optim.Adam(lr=lambda done: 0.01 * 0.995**done),
    "adamw": mr.optim.AdamW(lr=0.01, weight_decay=0.01),
    "lars": mr.optim.LARS(lr=lambda done: 20.0 * 0.98**done, weight_decay=1e-4),
    "lamb": mr.optim.LAMB(lr=lambda done: 0.03 * 0.97**done),
    "adafactor": mr.optim.Adafactor(lr=0.01),
}
BATCH = 120  # a multiple of 1, 2, 3, 4 and 5 ranks
EPOCHS = 12
WIDTH = 96


def data() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return training images and labels, and test images and labels."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = (images[order] / 16 - 0.5).astype(np.float32), labels[order].astype(np.int64)
    return x[:1440], y[:1440], x[1440:], y[1440:]


def new_network() -> Arrays:
    """Return the parameters of 64 - 96 - 96 - 10."""
    rng = np.random.default_rng(1)
    params: Arrays = {}
    for layer, (n_in, n_out) in enumerate([(64, WIDTH), (WIDTH, WIDTH), (WIDTH, 10)]):
        params[f"w{layer}"] = (rng.standard_normal((n_in, n_out)) * np.sqrt(2 / n_in)).astype(np.float32)
        params[f"b{layer}"] = np.zeros(n_out, np.float32)
    return params


def forward(params: Arrays, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return the input of every layer, and the scores."""
    layers = [x]
    for layer in range(3):
        scores = layers[-1] @ params[f"w{layer}"] + params[f"b{layer}"]
        layers.append(np.maximum(scores, 0) if layer < 2 else scores)
    return layers


def backward(params: Arrays, layers: list[NDArray[np.float32]], labels: NDArray[np.int64], opt: Any) -> float:
    """Hand in every gradient as soon as it is there; return the mean loss."""
    scores = layers[-1] - layers[-1].max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels] + 1e-12).mean())
    slope = chances
    slope[rows, labels] -= 1
    slope /= len(labels)
    for layer in reversed(range(3)):
        below = slope @ params[f"w{layer}"].T
        opt.backward_hook(f"b{layer}", slope.sum(axis=0))
        opt.backward_hook(f"w{layer}", layers[layer].T @ slope)
        slope = below * (layers[layer] > 0)
    return loss


def train(comm: Any, name: str, sharded: bool, epochs: int) -> dict[str, Any]:
    """Train one network; return what happened."""
    x, y, test_x, test_y = data()
    params = new_network()
    own = {"lars": {"adapt": False, "lr": 0.1, "weight_decay": 0.0}, "lamb": {"adapt": False, "weight_decay": 0.0}}
    opt = mr.ShardedOptimizer(
        comm, params, RULES[name], order="rank", skip_nonfinite=True,
        groups=[mr.sharded.Group(lambda _, shape: len(shape) < 2, **own.get(name, {}))],  # biases
        subgroup=None if sharded else 1,  # groups of one rank: every rank holds and updates everything
    )  # fmt: skip
    share = BATCH // comm.size
    times, losses = [], []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(x))
        for start in range(0, len(x), BATCH):
            mine = order[start + comm.rank * share : start + (comm.rank + 1) * share]
            begun = time.perf_counter()
            losses.append(backward(params, forward(params, x[mine]), y[mine], opt))
            opt.step()
            times.append(time.perf_counter() - begun)
    loss = np.array([np.mean(losses[-len(x) // BATCH :])])
    comm.all_reduce(loss, op="avg")
    accuracy = float((forward(params, test_x)[-1].argmax(axis=1) == test_y).mean())
    state = sum(opt.state_bytes().values())
    weights = float(sum(np.abs(p.astype(np.float64)).sum() for p in params.values()))
    opt.close()
    return {
        "loss": float(loss[0]), "accuracy": accuracy, "step_us": 1e6 * float(np.median(times)), "state": state,
        "weights": weights,
    }  # fmt: skip


def main() -> None:
    """Start ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", help="numbers of ranks to start, such as 1,2,4; left out: be one of those there are")
    parser.add_argument("--rule", choices=["all", *RULES], default="all")
    parser.add_argument("--mode", choices=["both", "replicated", "sharded"], default="both")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    if arguments.ranks:
        rest = [f"--rule={arguments.rule}", f"--mode={arguments.mode}", f"--epochs={arguments.epochs}"]
        for n in arguments.ranks.split(","):
            subprocess.run(
                [sys.executable, "-m", "multiring", "launch", "-n", n, "--", sys.executable, __file__, *rest],
                check=True,
            )
        return
    with mr.init(device="host") as comm:
        if comm.rank == 0:
            print(f"# {comm.size} ranks, {arguments.epochs} epochs of 1440 digits in batches of {BATCH}")
            print(
                f"{'rule':>10} {'optimizer':>11} {'loss':>9} {'accuracy':>9} {'step us':>8} "
                f"{'state bytes/rank':>17} {'sum |w|':>12}"
            )
        for name in RULES if arguments.rule == "all" else [arguments.rule]:
            for mode in ("replicated", "sharded") if arguments.mode == "both" else (arguments.mode,):
                row = train(comm, name, mode == "sharded", arguments.epochs)
                if comm.rank == 0:
                    print(
                        f"{name:>10} {mode:>11} {row['loss']:9.5f} {row['accuracy']:9.4f} {row['step_us']:8.0f} "
                        f"{row['state']:17} {row['weights']:12.5f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
