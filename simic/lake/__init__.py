"""Parquet, ledgers and the DuckDB views over them."""
