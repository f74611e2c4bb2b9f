"""SQL views over a home, the queries on them and their documentation."""
