"""An in-memory buffer for sequences that arrive while a learner reads."""
