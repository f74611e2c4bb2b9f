"""Many hosts as stacked tensors: their data, their training in two forms, and how they are measured."""
