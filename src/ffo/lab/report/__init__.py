"""From rows to a page a person reads: `write_report(folder)`."""

from ffo.lab.report.page import write_report

__all__ = ["write_report"]
