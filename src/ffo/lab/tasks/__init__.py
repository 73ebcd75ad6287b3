"""The learning tasks: decision-focused QPs and SOCPs, and the rules of Sudoku."""

from functools import lru_cache

from ffo.lab.tasks.base import Task, TaskData, TaskSizes
from ffo.lab.tasks.decision import decision
from ffo.lab.tasks.inner import Inner
from ffo.lab.tasks.sudoku import sudoku

__all__ = ["Inner", "Task", "TaskData", "TaskSizes", "make_task"]


@lru_cache(maxsize=4)
def make_task(name: str, sizes: TaskSizes) -> Task:
    """The task of this name (a key of `ffo.lab.rows.TASKS`); the same object for the same sizes."""
    if name.startswith("sudoku"):
        return sudoku(int(name.removeprefix("sudoku")), sizes)
    return decision(name, sizes)
