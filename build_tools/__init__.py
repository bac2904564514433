"""Release tooling: one built wheel -> the wheels that a release publishes."""

__version__ = "0.1.0"
