"""The machine that the rows were measured on."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from ffo.kernels.pool import cpus
from ffo.lab.rows import Machine

PACKAGES = (
    "ffo torch numpy scipy cvxpy cvxpylayers diffcp qpth proxsuite moreau ffolayer "
    "clarabel scs osqp piqp daqp qoco ecos highspy gurobipy qpsolvers"
).split()


def this_machine(
    preset: str,
    seeds: Sequence[int],
    experiments: Sequence[str],
    methods: Sequence[str],
    threads: int,
    setting: str = "paper",
    at_once: int = 0,
) -> Machine:
    """This machine, now."""
    return Machine(
        cpu=_processor(),
        cores=cpus(),
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: found for name in PACKAGES if (found := _version(name))},
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        preset=preset,
        seeds=list(seeds),
        experiments=list(experiments),
        methods=list(methods),
        threads=threads,
        at_once=at_once or 1,
        setting=setting,
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        load=round(psutil.getloadavg()[0], 2),
        command=shlex.join(["ffo", "lab", *(sys.argv[2:] if sys.argv[1:2] == ["lab"] else sys.argv[1:])]),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
