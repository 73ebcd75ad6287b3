"""Translation of user settings into a solver's own names.

Every adapter accepts `eps` (accuracy), `max_iters` and `verbose`, and `time_limit` (seconds for one solve) if its
solver has such a limit. The solver's own names pass through. Another solver's name for its accuracy or iteration limit
means `eps` or `max_iters`, so that a solver can be swapped without editing its arguments. Any other name that only
another solver (or another layer package) has is ignored with a `SettingWarning`. A name that no solver has is an error,
because it is most likely a typo.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ffo.errors import InputError, SettingWarning, UnknownSettingError
from ffo.solvers.table import adapters

if TYPE_CHECKING:
    from ffo.solvers.base import Solver

DEFAULT_EPS = 1e-8

COMMON = frozenset({"eps", "max_iters", "time_limit", "verbose"})

#: Settings of cvxpylayers, diffcp, qpth and CVXPY's solve() that have no meaning here.
FOREIGN = frozenset(
    """solve_method mode n_jobs_forward n_jobs_backward derivative_kwargs lpgd_args warm_start raise_on_error
    solver solver_args use_LPGD diff_mode tau rho tau_b tau_f ignore_dpp canon_backend gp qcp requires_grad
    enforce_dpp check_Q_spd notImprovedLim maxIter structural_feasibility omp_parallel maxIterBackward warm_starts tol
    """.split()
)


@dataclass(frozen=True)
class Resolved:
    """Settings in the solver's own names; `eps` is the loosest accuracy among them."""

    native: dict[str, Any]
    eps: float
    verbose: bool


def resolve(solver: type[Solver] | Solver, settings: Mapping[str, Any] | None) -> Resolved:
    """Translate a user's settings for one adapter.

    Raises:
        UnknownSettingError: for a name that no adapter has.
        InputError: for an invalid `eps`, `max_iters` or `time_limit`.
    """
    given = _translated(solver, settings or {})
    eps = _positive("eps", given.pop("eps", DEFAULT_EPS), float)
    limits = [
        ("max_iters", solver.iteration_limit, given.pop("max_iters", None), int),
        ("time_limit", solver.time_limit, given.pop("time_limit", None), float),
    ]
    verbose = given.pop("verbose", False)
    if not isinstance(verbose, (bool, int, float)):
        raise InputError(f"verbose must be true or false, not {verbose!r}")
    native: dict[str, Any] = dict(solver.defaults)
    native.update(dict.fromkeys(solver.tolerances, eps))
    for name, own, value, kind in limits:
        if value is not None:
            checked = _positive(name, value, kind)
            if own:
                native[own] = checked
            else:
                _warn(solver, name)
    for name, value in given.items():
        if name in solver.native_settings or (solver.open_settings and name not in solver.ignored_settings):
            native[name] = value
        elif name in FOREIGN or any(name in cls.native_settings for cls in adapters().values()):
            _warn(solver, name)
        else:
            raise UnknownSettingError(_unknown(solver, name))
    asked = [native[t] for t in solver.tolerances if isinstance(native.get(t), (int, float))]
    return Resolved(native, float(max(asked, default=eps)), verbose > 0)


def _translated(solver: type[Solver] | Solver, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with `eps` and `max_iters` instead of the names that other solvers have for them.

    Of several accuracies the smallest counts. Names beside an explicit `eps` or `max_iters` are left as they are.
    """
    given, own = dict(settings), COMMON | solver.native_settings | {*solver.tolerances, solver.iteration_limit}
    if given.keys() <= own or (solver.open_settings and not solver.tolerances):
        return given
    for common, names in zip(("eps", "max_iters"), _names_elsewhere(), strict=True):
        foreign = [name for name in given if name in names and name not in own]
        if foreign and common not in given:
            kind = float if common == "eps" else int
            given[common] = min(_positive(name, given.pop(name), kind) for name in foreign)
    return given


def _names_elsewhere() -> tuple[set[str], set[str]]:
    """Names that solvers have for their accuracy and for their iteration limit.

    Those that no adapter has: "tol" (of several layer packages) and "feastol" (of ECOS).
    """
    known = adapters().values()
    return {"tol", "feastol"}.union(*(cls.tolerances for cls in known)), {cls.iteration_limit for cls in known}


def assign(target: Any, settings: Mapping[str, Any], solver: str) -> Any:
    """Set attributes of a solver's settings object; a refused value is an `InputError`."""
    for name, value in settings.items():
        try:
            setattr(target, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{solver} does not accept {name}={value!r}: {error}") from error
    return target


def wants_dense(solver: str, backend: str, suits: Callable[[], bool]) -> bool:
    """Whether to use the dense interface of a solver; `suits`: whether to do so by default, "auto"."""
    if backend not in ("auto", "sparse", "dense"):
        raise InputError(f"{solver}: backend must be 'auto', 'sparse' or 'dense', not {backend!r}")
    return suits() if backend == "auto" else backend == "dense"


@contextmanager
def refused_settings(solver: Solver) -> Iterator[None]:
    """Raise an `UnknownSettingError` instead of an exception that names one of the solver's settings in quotes."""
    try:
        yield
    except Exception as error:
        wrong = [name for name in solver.settings if f"'{name}'" in str(error)]
        if wrong:
            raise UnknownSettingError(f"{solver.name} does not accept {', '.join(wrong)}: {error}") from error
        raise


def _positive(name: str, value: Any, kind: type) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a positive number, not {value!r}") from None
    if not number > 0:
        raise InputError(f"{name} must be a positive number, not {value!r}")
    return number


def _warn(solver: type[Solver] | Solver, name: str) -> None:
    text = f"setting {name!r} has no effect on {solver.name}; every solver accepts eps and max_iters"
    warnings.warn(text, SettingWarning, stacklevel=2)


def _unknown(solver: type[Solver] | Solver, name: str) -> str:
    own = sorted(COMMON | solver.native_settings)
    close = difflib.get_close_matches(name, own, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"no solver has a setting {name!r}{hint} {solver.name} accepts: {', '.join(own)}"
