"""The wire between the gateway and a runner process, both ends: `create_runner_app` there, `RunnerClient`
here."""

from backends.runner.app import create_runner_app
from backends.runner.client import RunnerClient
from backends.runner.offers import OfferingClient

__all__ = ["OfferingClient", "RunnerClient", "create_runner_app"]
