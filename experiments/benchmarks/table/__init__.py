"""A table of one's own as a benchmark: JSON lines, CSV, Parquet, or a data set of the hub."""

from experiments.benchmarks.table.benchmark import Table, table

__all__ = ["Table", "table"]
