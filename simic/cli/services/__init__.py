"""Long-running parts on this machine: Prefect server and worker, MLflow UI. Loopback only."""
