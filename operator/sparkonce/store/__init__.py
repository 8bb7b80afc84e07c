"""Where records live: the protocol, and one implementation per backend."""
