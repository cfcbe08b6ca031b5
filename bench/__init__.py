"""Measurements of the running service, from outside: they speak HTTP and import nothing of the service."""
