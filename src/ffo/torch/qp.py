"""FFOQPLayer: quadratic programs given by matrices (FFOQP of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, cast, overload

import torch
from typing_extensions import TypeVar  # torch requires it; typing's has no default before Python 3.13

from ffo.engine import Options, Smoothing
from ffo.engine.keys import call_keys
from ffo.engine.options import OnFail, check_relaxed, from_qpth
from ffo.errors import InputError
from ffo.ghost.oracle import Way
from ffo.program.blocks import MATRICES, is_absent
from ffo.program.canonical import CanonicalProblem
from ffo.program.quadratic import NAMES, Name, QPSolution, quadratic_problem
from ffo.solvers.base import Solver
from ffo.torch.base import OptimizationLayer, Report, reporting
from ffo.torch.blocks import Checked, Form, Given, read_blocks, read_given
from ffo.torch.dense.blocks import BlockFront
from ffo.torch.dense.layer import accessible
from ffo.torch.dense.parts import solve_on_device
from ffo.torch.dense.warm import ActiveSets, Remembered
from ffo.torch.function import in_one_dtype
from ffo.torch.graph import fits_into_graphs, outside_graphs, solve_in_graph, traced

Found = TypeVar("Found", bound="torch.Tensor | QPSolution[torch.Tensor]", default=torch.Tensor)


class QPOptions(TypedDict, total=False):
    """The arguments of `FFOQPLayer` other than `duals`."""

    reduction: Literal["sum", "mean"]
    solver: str | Solver | Enum | None
    solver_args: Mapping[str, Any] | None
    backward: str | Way
    delta: float | None
    backward_eps: float | None
    backward_solver: str | Solver | None
    on_fail: OnFail
    warm_start: bool
    retry: Sequence[str | Solver] | None
    smoothing: float | Smoothing | None
    verbose: bool | int
    time_limit: float | None
    eps: float | None
    maxIter: int | None
    notImprovedLim: int | None
    check_Q_spd: bool


class FFOQPLayer(OptimizationLayer, Generic[Found]):
    """Solves  minimize 1/2 z'Qz + p'z  subject to  Az = b, lower <= Gz <= h, lb <= z <= ub.

    The argument order of a call is qpth's. Gradients of blocks shared by the batch are sums over the batch; qpth
    returns means, as `reduction="mean"` does here.

    Args:
        duals: whether to return a `QPSolution` instead of z alone; multipliers are differentiable.
        reduction: "sum" or "mean", for gradients of blocks without a batch dimension.
        solver, solver_args, backward, delta, backward_eps, backward_solver, on_fail, warm_start, retry, smoothing,
            verbose, time_limit: as in `FFOLayer` (dense programs on a device take a bounded number of steps, which
            `time_limit` does not interrupt).
        eps, maxIter, notImprovedLim, check_Q_spd: arguments of qpth's `QPFunction`. `eps` is the accuracy, as in
            `solver_args`. The others are ignored: iteration limits of another algorithm mean nothing here, and Q is
            always checked. qpth's `solver=QPSolvers.PDIPM_BATCHED` or `QPSolvers.CVXPY` means the default solver, and
            `verbose=-1` means silence.

    Example:
        >>> import torch
        >>> qp = FFOQPLayer()
        >>> Q, p = torch.eye(3), torch.randn(8, 3, requires_grad=True)
        >>> z = qp(Q, p, lb=torch.zeros(3))  # (8, 3), projections onto z >= 0
        >>> z.sum().backward()
    """

    @overload
    def __init__(
        self: FFOQPLayer[torch.Tensor], *, duals: Literal[False] = False, **options: Unpack[QPOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: FFOQPLayer[QPSolution[torch.Tensor]], *, duals: Literal[True], **options: Unpack[QPOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: FFOQPLayer[torch.Tensor | QPSolution[torch.Tensor]], *, duals: bool, **options: Unpack[QPOptions]
    ) -> None: ...

    def __init__(
        self,
        *,
        duals: bool = False,
        reduction: Literal["sum", "mean"] = "sum",
        solver: str | Solver | Enum | None = None,
        solver_args: Mapping[str, Any] | None = None,
        backward: str | Way = "auto",
        delta: float | None = None,
        backward_eps: float | None = None,
        backward_solver: str | Solver | None = None,
        on_fail: OnFail = "raise",
        warm_start: bool = False,
        retry: Sequence[str | Solver] | None = None,
        smoothing: float | Smoothing | None = None,
        verbose: bool | int = False,
        time_limit: float | None = None,
        eps: float | None = None,
        maxIter: int | None = None,
        notImprovedLim: int | None = None,
        check_Q_spd: bool = True,
    ) -> None:
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
        options = Options(
            **from_qpth(solver, solver_args, eps, verbose),
            backward=backward,
            delta=delta,
            backward_eps=backward_eps,
            backward_solver=backward_solver,
            on_fail=on_fail,
            warm_start=warm_start,
            retry=retry,
            smoothing=smoothing,  # type: ignore[arg-type]
            time_limit=time_limit,
        )
        check_relaxed(options.relax)
        super().__init__(options)
        self.duals = duals
        self.reduction = reduction
        self._sets = ActiveSets()
        self._checked: Checked | None = None
        self._closed: tuple[Checked, CanonicalProblem] | None = None

    def forward(
        self,
        Q: torch.Tensor | None,
        p: torch.Tensor,
        G: torch.Tensor | None = None,
        h: torch.Tensor | None = None,
        A: torch.Tensor | None = None,
        b: torch.Tensor | None = None,
        *,
        lb: torch.Tensor | None = None,
        ub: torch.Tensor | None = None,
        lower: torch.Tensor | None = None,
        solver_args: Mapping[str, Any] | None = None,
        keys: Sequence[Hashable] | torch.Tensor | None = None,
        warm_start: bool | None = None,
        start: torch.Tensor | QPSolution[torch.Tensor] | None = None,
    ) -> Found:
        """Solve for the given blocks, each with or without a leading batch dimension.

        Args:
            Q: (n, n) positive semidefinite; its symmetric part is used. None: a linear program.
            p: (n,).
            G, h: (m, n) and (m,); A, b: (p, n) and (p,); None or empty tensors where absent.
            lb, ub: (n,) bounds; lower: (m,) lower bounds of the rows of G. Infinite bounds are ignored; they may
                differ between samples.
            solver_args, keys, warm_start: as in `FFOLayer`.
            start: an initial guess z (n,) or (*batch, n), or a `QPSolution`, used as in `FFOLayer`; its multipliers
                are used if the layer was made with `duals=True`.

        Matrices may be sparse tensors (COO, CSR, CSC); their gradients are then on the nonzeros.

        Returns:
            z (*batch, n), or a `QPSolution` if the layer was made with `duals=True`.
        """
        blocks: dict[Name, torch.Tensor | None]
        blocks = {"Q": Q, "p": p, "G": G, "h": h, "A": A, "b": b, "lb": lb, "ub": ub, "lower": lower}
        if torch.compiler.is_compiling() or traced():
            plain = solver_args is None and keys is None and warm_start is None and start is None
            given = list(blocks.values())
            if plain and fits_into_graphs(given):
                return self._as_asked(tuple(solve_in_graph(self._number, given)))
            return self._outside(blocks, solver_args, keys, warm_start, start)
        return self._solve(blocks, solver_args, keys, warm_start, start)

    call = reporting(forward)
    if TYPE_CHECKING:  # torch declares that calling a module returns Any
        __call__ = forward

    def _solve(
        self,
        tensors: Mapping[Name, torch.Tensor | None],
        solver_args: Mapping[str, Any] | None,
        keys: Sequence[Hashable] | torch.Tensor | None,
        warm_start: bool | None,
        start: torch.Tensor | QPSolution[torch.Tensor] | None,
    ) -> Found:
        given = read_given(tensors, self._checked)
        self.__dict__["_checked"] = given.checked
        named = call_keys(keys, warm_start, self.engine.options.warm_start, given.form.batch)
        guesses = None if start is None else self._guess(start, given.form)
        if not solver_args:
            found = self._dense(given, named, guesses)
            if found is not None:
                return self._as_asked(found)
        return self._as_asked(self._core(given, solver_args, named, guesses))

    _outside = outside_graphs(_solve)

    def from_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        blocks: Any = dict(zip(NAMES, tensors, strict=True))
        found = self(**blocks)
        return [found] if isinstance(found, torch.Tensor) else list(found)

    def shapes_in_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        given = {name: t for name, t in zip(NAMES, tensors, strict=True) if t is not None}
        present = {name: t for name, t in given.items() if not is_absent(name, t.shape)}
        batch = [t.shape[0] for name, t in present.items() if t.ndim > (2 if name in MATRICES else 1)][:1]
        p = in_one_dtype([present["p"], *given.values()])[0]
        n, (equalities, rows) = p.shape[-1], [present[k].shape[-2] if k in present else 0 for k in ("A", "G")]
        lengths = (n, equalities, rows, n) if self.duals else (n,)
        return [p.new_empty((*self.engine.options.lead, *batch, length)) for length in lengths]

    def _as_asked(self, outputs: tuple[torch.Tensor, ...]) -> Found:
        return cast(Found, QPSolution(*outputs) if self.duals else outputs[0])

    def _core(
        self,
        given: Given,
        solver_args: Mapping[str, Any] | None,
        keys: list[Hashable] | None,
        start: Sequence[torch.Tensor | None] | None = None,
        receive: Callable[[Report], None] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        closed, known = given.closed, self._closed
        if closed and known is not None and known[0] is given.checked:
            canonical = known[1]
            values = given.values(canonical.labels)
        else:
            blocks = read_blocks(given)
            canonical = quadratic_problem(blocks.structure, self.duals)
            values = [blocks.values[name] for name in blocks.structure.parameters]
            if closed:  # then the structure depends on the form alone
                self.__dict__["_closed"] = given.checked, canonical
        batched = tuple([v.ndim == 2 for v in values])
        return self._run(canonical, values, batched, given.form.batch, solver_args, keys, start=start, receive=receive)

    def _guess(self, start: torch.Tensor | QPSolution[torch.Tensor], form: Form) -> Sequence[torch.Tensor | None]:
        """A guess of each output."""
        listed = [start, None, None, None] if isinstance(start, torch.Tensor) else list(start)
        z = listed[0]
        if not isinstance(z, torch.Tensor) or tuple(z.shape) not in ((form.n,), (form.batch, form.n)):
            got = tuple(z.shape) if isinstance(z, torch.Tensor) else type(z).__name__
            raise InputError(f"start= must be z of shape {(form.n,)} or (batch, {form.n}), or a QPSolution; got {got}")
        return listed if self.duals else listed[:1]

    def _dense(
        self, given: Given, keys: list[Hashable] | None, start: Sequence[torch.Tensor | None] | None
    ) -> tuple[torch.Tensor, ...] | None:
        """The solution by dense batched algebra on a device; None if that does not apply or is not verified."""
        if not worthwhile(given) or not self._plain:
            return None

        def core(inputs: dict[Any, torch.Tensor], samples: list[int], receive: Any) -> tuple[torch.Tensor, ...]:
            named = None if keys is None else [keys[k] for k in samples]
            return self._core(read_given(inputs), None, named, receive=receive)

        z = None if start is None else start[0]
        known = None if keys is None and z is None else Remembered(self._sets, keys, z)
        return solve_on_device(self, given.form, BlockFront(given.form, self.duals), known, given.tensors, core)


def worthwhile(given: Given) -> bool:
    """Whether dense batched algebra on their device is faster than the core on these blocks: not on the CPU.

    Non-finite data shows in the residual of any point; the core then reports the error.
    """
    return given.form.dense and given.form.batch != 0 and accessible(given.form.device)
