"""Policy updates: publish a champion to production, a signed pointer on the bus, once; and follow them there."""
