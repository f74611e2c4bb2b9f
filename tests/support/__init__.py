"""What tests share: a folder for each kind of help; ``pythonpath`` in pyproject.toml makes it importable."""
