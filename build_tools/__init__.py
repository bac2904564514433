"""Release tooling: one built wheel -> the wheels that a release publishes."""
