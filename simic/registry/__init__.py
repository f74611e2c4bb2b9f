"""The judged policies, and which of them is champion; the only package that uses MLflow."""
