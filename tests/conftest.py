"""What holds for every test."""

from __future__ import annotations

try:
    from hypothesis import settings
except ImportError:  # the environments of clients and engines have no property tests
    pass
else:
    # How long an example takes says how busy the machine is; a test of speed measures for itself.
    settings.register_profile("any-machine", deadline=None)
    settings.load_profile("any-machine")
