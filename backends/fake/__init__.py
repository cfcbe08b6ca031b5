"""A deterministic backend without an engine: it ships, and tests, CI and load tests of the wire run on it."""

from backends.fake.loader import FakeLoader
from backends.fake.model import FakeModel, FakeScript

__all__ = ["FakeLoader", "FakeModel", "FakeScript"]
