"""Controllers: from what is seen of many hosts to one masked, factored action each."""
