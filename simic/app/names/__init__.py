"""Names of policies, Karns, controllers, sets and blueprints: looked up, and checked before anything is loaded."""
