"""The published computation of a cell of a phase diagram in PyTorch, batched as published but rewritten."""

import math
from typing import Any

import numpy as np


N, BETA, STEP = 32, 4.0, 0.1


def times_of(count: int) -> np.ndarray:
    """Save times, as far apart as the 200 published ones up to t = 30."""
    return np.arange(1, count + 1) * 30 / 199


def steps_of(times: np.ndarray) -> list[int]:
    """The steps up to each save time."""
    return [int(np.ceil(t / STEP - 1e-3)) for t in times]


def starts(samples: int, d: int, n: int = N) -> np.ndarray:
    x = np.random.default_rng(d).normal(size=(samples, n, d))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


class Cell:
    """The systems of one beta in float64 or float32, by the published step and statistic."""

    def __init__(self, x0: np.ndarray, beta: float, step: float, unnormalised: bool = False, device: str = "cpu"):
        import torch

        self.torch, self.beta, self.unnormalised = torch, beta, unnormalised
        self.x0 = torch.from_numpy(np.ascontiguousarray(x0)).to(device)
        self.step = step / max(math.sqrt(beta) * math.exp(beta - 0.5), 1.0) if unnormalised else step

    def advance(self, x: Any) -> Any:
        """One step: logits, softmax or exponential, the average added, rows normalised."""
        torch = self.torch
        logits = self.beta * torch.matmul(x, x.transpose(1, 2))
        weights = torch.exp(logits) / x.shape[1] if self.unnormalised else torch.softmax(logits, dim=2)
        return torch.nn.functional.normalize(x + self.step * torch.matmul(weights, x), dim=2)

    def share(self, x: Any) -> float:
        """The share of close pairs; a mask selects the entries off the diagonal, as published."""
        torch = self.torch
        off = ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device).expand(x.shape[0], -1, -1)
        return float((torch.matmul(x, x.transpose(1, 2))[off] > 0.999).double().mean())

    def row(self, counts: list[int]) -> list[float]:
        """The shares after so many steps, increasing."""
        x, done, shares = self.x0, 0, []
        with self.torch.no_grad():
            for count in counts:
                for _ in range(count - done):
                    x = self.advance(x)
                done = count
                shares.append(self.share(x))
        return shares
