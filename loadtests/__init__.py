"""Load tests of an OpenAI-compatible service. They speak HTTP and import nothing of it.

Only `locustfile` and `session` need locust; everything else runs on the standard library and PyYAML, so that it can be
tested, and a report made, where locust is not installed.
"""
