"""Constrained bilevel optimization: Goldstein stationary points from inexact hypergradients."""

from ffo.bilevel.goldstein import GoldsteinDescent, Window
from ffo.bilevel.minimize import minimize
from ffo.bilevel.result import History, Reason, Result
from ffo.bilevel.theory import Plan, plan

__all__ = ["GoldsteinDescent", "History", "Plan", "Reason", "Result", "Window", "minimize", "plan"]
