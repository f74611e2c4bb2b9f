"""The public Python API behind ``import simic``: policies that decide, a home's data, and reports from elsewhere."""
