r"""
Learning Sudoku from examples
=============================

A layer can learn its *constraints*. This one sees only solved puzzles: it is never told
that the digits in a row, a column or a box must differ. It learns a matrix A and a vector b
such that the quadratic program

.. math::

   \min_y \; \tfrac{1}{20} |y|^2 - p^T y \quad\text{subject to}\quad A y = b, \; y \ge 0

completes a puzzle. Here y has one entry for each cell and digit, and p marks the given
digits. This is OptNet's Sudoku experiment, on 4×4 boards.
"""

# %%
# Puzzles
# -------
# There are 288 complete boards. A puzzle is a board from which digits are removed in random
# order, as long as the solution stays unique. Test puzzles come from boards that are not
# used in training.

from itertools import permutations

import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOQPLayer

D = torch.float64
rng = np.random.default_rng(0)
torch.manual_seed(0)

UNITS = [*np.arange(16).reshape(4, 4), *np.arange(16).reshape(4, 4).T]
UNITS += [np.array([0, 1, 4, 5]) + corner for corner in (0, 2, 8, 10)]
rows = [np.array(row) for row in permutations(range(4))]
boards = np.array(
    [
        board
        for a in rows
        for b in rows
        if set(a[:2]).isdisjoint(b[:2])
        for c in rows
        for d in rows
        if all(
            len(set((board := np.concatenate([a, b, c, d]))[unit])) == 4 for unit in UNITS
        )
    ]
)
print(len(boards), "boards")


def puzzle(board: np.ndarray) -> np.ndarray:
    """(16,) whether each digit is shown: about six."""
    shown = np.ones(16, dtype=bool)
    for cell in rng.permutation(16)[:11]:
        shown[cell] = False
        if (boards[:, shown] == board[shown]).all(1).sum() > 1:
            shown[cell] = True
    return shown


def draw(solved: np.ndarray, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Puzzles and solutions as indicators, (count, 64) each."""
    chosen = solved[rng.integers(len(solved), size=count)]
    digits = np.eye(4)[chosen]  # (count, 16, 4)
    shown = np.stack([puzzle(board) for board in chosen])
    return torch.tensor((digits * shown[..., None]).reshape(count, 64)), torch.tensor(
        digits.reshape(count, 64)
    )


order = rng.permutation(len(boards))
train, test = draw(boards[order[:144]], 400), draw(boards[order[144:]], 100)

# %%
# The layer
# ---------
# A is initialized at random. The right-hand side b = A z with z > 0 ensures that there is
# always a feasible point.

A = torch.rand(40, 64, dtype=D).requires_grad_()
log_z = torch.zeros(64, dtype=D, requires_grad=True)
layer = FFOQPLayer()
Q, zero = 0.1 * torch.eye(64, dtype=D), torch.zeros(64, dtype=D)


def complete(puzzles: torch.Tensor) -> torch.Tensor:
    return layer(Q, -puzzles, A=A, b=A @ log_z.exp(), lb=zero)


def wrong(found: torch.Tensor, solved: torch.Tensor) -> torch.Tensor:
    """(count, 16) whether the largest entry of a cell is the wrong digit."""
    return found.view(-1, 16, 4).argmax(2) != solved.view(-1, 16, 4).argmax(2)


# %%
# Training
# --------
# The loss compares the completed board with the solution. Its gradient updates A and b.
# It is clipped: where rows of A nearly depend on each other, in the entries of y that are
# not zero, it is large, and a single step along it could undo epochs of training.

optimizer = torch.optim.Adam([A, log_z], lr=0.03)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [32], gamma=0.1)
solved_share, snapshots = [], {}
EPOCHS, SHOWN = 40, (0, 6, 12, 40)
for epoch in range(EPOCHS + 1):
    with torch.no_grad():
        found = complete(test[0])
    solved_share.append(100 * (~wrong(found, test[1]).any(1)).double().mean().item())
    if epoch in SHOWN:
        snapshots[epoch] = found
    if epoch == EPOCHS:
        break
    for batch in torch.randperm(len(train[0])).split(20):
        loss = (complete(train[0][batch]) - train[1][batch]).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([A, log_z], 1.0)
        optimizer.step()
    schedule.step()
print(
    f"unseen puzzles solved: {solved_share[0]:.0f} % before, {solved_share[-1]:.0f} % after"
)
assert solved_share[-1] > 90  # checked whenever this page is built

# %%
# The picture
# -----------
# Two puzzles of the test set, and the layer's answers as it learns. Given digits have a
# grey background, pale digits are uncertain, and wrong digits are orange.


def draw_board(
    axis: plt.Axes, values: torch.Tensor, given: torch.Tensor, true: torch.Tensor
) -> None:
    """Values (64,): the digit of each cell, as strong as its entry."""
    cells, shown, right = (v.view(16, 4) for v in (values, given, true))
    for k in range(16):
        row, column = divmod(k, 4)
        digit, strength = int(cells[k].argmax()), float(cells[k].max().clamp(0.2, 1))
        colour = "black" if digit == int(right[k].argmax()) else "C1"
        if shown[k].any():
            axis.add_patch(plt.Rectangle((column, 3 - row), 1, 1, color="0.88"))
        if cells[k].max() > 0:
            place = (column + 0.5, 3.45 - row)
            axis.text(
                *place,
                digit + 1,
                ha="center",
                va="center",
                color=colour,
                alpha=strength,
                fontsize=13,
            )
    for k in range(5):
        width = 1.8 if k % 2 == 0 else 0.6
        axis.plot(
            [k, k],
            [0, 4],
            [0, 4],
            [k, k],
            color="black",
            linewidth=width,
            solid_capstyle="butt",
        )
    axis.set(aspect="equal", xlim=(-0.05, 4.05), ylim=(-0.05, 4.05))
    axis.axis("off")


names = ["puzzle", *map(str, SHOWN), "solution"]
layout = [[f"{k} {name}" for name in names] for k in range(2)]
figure, axes = plt.subplot_mosaic(
    [*layout, ["curve"] * 6], figsize=(9.5, 5.4), height_ratios=(3, 3, 2)
)
for k, sample in enumerate((3, 8)):
    given, true = test[0][sample], test[1][sample]
    boards_shown = [given, *(snapshots[epoch][sample] for epoch in SHOWN), true]
    for name, values in zip(names, boards_shown, strict=True):
        draw_board(axes[f"{k} {name}"], values, given, true)
for name in names:
    title = f"after {name} epochs" if name.isdigit() else name
    axes[f"0 {name}"].set_title(title, fontsize=10, loc="center")
axes["curve"].plot(solved_share, marker="o", markersize=3)
axes["curve"].set(xlabel="epoch", ylabel="solved, %", xlim=(0, EPOCHS), ylim=(-3, 103))
axes["curve"].set_title("Unseen puzzles solved without a mistake")
plt.show()
