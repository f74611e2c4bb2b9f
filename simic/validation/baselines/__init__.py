"""Plan books: the best fixed plans and heuristic rules of a set, found by search."""
