"""Print pip constraints that pin every requirement of pyproject.toml to its lowest declared version.

`python scripts/lowest.py scipy==1.14.1` replaces the pin of a package, to try another bound. A package has one lower
bound in the whole file; an upper bound is irrelevant here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<version>[\w.]+)(,<[\w.]+)?(;.*)?")


def lowest(project: dict) -> dict[str, str]:
    """Lowest declared version of every requirement, extras included."""
    extras = project["optional-dependencies"].values()
    pins: dict[str, str] = {}
    for requirement in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        if requirement.startswith(f"{project['name']}["):
            continue
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} has no lower bound of the form 'name>=version'")
        name, version = match["name"], match["version"]
        if pins.setdefault(name, version) != version:
            raise SystemExit(f"{name} has two lower bounds, {pins[name]} and {version}; declare one everywhere")
    return pins


if __name__ == "__main__":
    pins = lowest(tomllib.loads(PROJECT.read_text())["project"])
    pins |= dict(argument.split("==") for argument in sys.argv[1:])
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in pins.items())
