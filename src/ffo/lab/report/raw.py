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

CSV = "rows.csv"
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


def read_csv(path: Path) -> list[Row]:
    """The rows of a file that `csv_text` wrote; none if there is no file."""
    if not path.exists():
        return []
    kinds = {field.name: str(field.type) for field in fields(Row)}

    def value(name: str, text: str) -> str | int | float | None:
        if not text and "None" in kinds[name]:
            return None
        return int(text) if "int" in kinds[name] else float(text) if "float" in kinds[name] else text

    with path.open(encoding="utf-8", newline="") as file:
        entries = list(csv.DictReader(file))
    return [Row(**{name: value(name, text) for name, text in entry.items()}) for entry in entries]  # type: ignore[arg-type]


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
