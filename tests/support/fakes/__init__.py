"""Stand-ins for production code: stages of a run that return at once, small host families."""
