"""Controllers: map observations of many hosts to one masked, factored action per host."""
