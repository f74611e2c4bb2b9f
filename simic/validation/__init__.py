"""Closed-loop trials, their statistics and the gate: reports in, a decision out."""
