"""The wire between the gateway and a runner process, both ends: `create_runner_app` there, `RunnerClient`
here."""

from backends.runner.app import create_runner_app
from backends.runner.client import RunnerClient
from backends.runner.offers import OfferingClient
from backends.runner.replicas import RunnerReplicas

__all__ = ["OfferingClient", "RunnerClient", "RunnerReplicas", "create_runner_app"]
