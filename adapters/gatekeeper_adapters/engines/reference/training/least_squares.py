"""Ridge regression over pieces: what a linear map can know is known before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

__all__ = ["ridge"]


def ridge(pieces: Iterable[tuple[Tensor, Tensor]], *, weight: float) -> Tensor:
    """The map [out, in] that takes rows ``x`` [n, in] to rows ``y`` [n, out] with least squares.

    ``weight`` times the mean square of a feature, summed over all rows, is added for every feature:
    it keeps the map small where the rows say little.
    """
    inner = outer = torch.zeros(())
    for x, y in pieces:
        inner = inner + x.T @ x
        outer = outer + x.T @ y
    inner = inner + weight * inner.diagonal().mean() * torch.eye(len(inner))
    return torch.linalg.solve(inner, outer).T.contiguous()
