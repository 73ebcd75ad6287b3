"""The rows themselves, for other programs."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from ffo.lab.rows import COLUMNS, Row

VALUES = attrgetter(*COLUMNS)
#: why there is no Parquet file, for the reader of the report
NO_PARQUET = "rows.parquet was not written: the package pyarrow is not installed (pip install pyarrow)"


def csv_text(rows: Sequence[Row]) -> str:
    """A line for each row under a header; null is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(VALUES, rows))
    return buffer.getvalue()


def write_parquet(path: Path, rows: Sequence[Row]) -> bool:
    """Write rows with the types of `Row`; False, and no file, if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        path.unlink(missing_ok=True)
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(annotation: str) -> pa.DataType:
        return pa.int64() if "int" in annotation else pa.float64() if "float" in annotation else pa.string()

    schema = pa.schema([(field.name, kind(str(field.type))) for field in fields(Row)])
    columns = list(zip(*map(VALUES, rows), strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
    return True
