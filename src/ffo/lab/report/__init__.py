"""The report on the rows of a results folder: `write_report`; as a page of a documentation site: `publish`."""

from ffo.lab.report.page import write_report
from ffo.lab.report.publish import publish

__all__ = ["publish", "write_report"]
