"""The report on the rows of a results folder: `write_report(folder)`."""

from ffo.lab.report.page import write_report

__all__ = ["write_report"]
