"""What holds for every test."""

from __future__ import annotations

import pytest

# These checks are part of the service; where one fails, pytest shall say as much of it as of a test.
pytest.register_assert_rewrite("openai_compat.conformance.cases")

try:
    from hypothesis import settings
except ImportError:  # the environments of clients and engines have no property tests
    pass
else:
    # How long an example takes says how busy the machine is; a test of speed measures for itself.
    settings.register_profile("any-machine", deadline=None)
    settings.load_profile("any-machine")
