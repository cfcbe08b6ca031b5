"""The service, started, loaded for a minute and stopped: what CI runs.

First the backend without a model, with every kind of user at once: does each answer keep the protocol? Then a small
real model for a while: does it stream, evenly, and stay responsive? All bounds are ratios: they hold on any machine.
"""

from __future__ import annotations

from pathlib import Path

from loadtests.own_service import LIMITED_TOKEN, TOKEN, first_answer, own_service
from loadtests.report import Report
from loadtests.run import Options, run_workload
from loadtests.target import PREFIX
from loadtests.workload import load_workload

SETTINGS = {
    "LLM_DEFAULT_BACKEND": "llamacpp",
    "LLM_ENABLED_BACKENDS": "llamacpp,fake",
    "LLM_MAX_CONCURRENT_COMPLETIONS": "64",
    # Client and service share the cores: an engine thread that waits must not spin.
    "OMP_WAIT_POLICY": "passive",
}
STOP_S = "60"
"""How long the last answers may take: on a machine that hardly moves they are the only ones."""
PARTS = (
    ("smoke-protocol", {"MODEL": "fake-echo", "EMBEDDING_MODEL": "fake-embeddings", "QUANTISATION": "none"}),
    ("smoke-model", {"MODEL": "smollm2-135m-instruct", "QUANTISATION": "Q4_1"}),
)


def smoke(*, python: str, out: Path) -> list[Report]:
    """A report per part. `python` has bentoml. Raises: TargetError, with the end of the service's log."""
    out.mkdir(parents=True, exist_ok=True)
    reports = []
    with own_service(python, out / "service", SETTINGS) as service:
        for name, settings in PARTS:
            told = {"TOKEN": TOKEN, "OVER_LIMIT_TOKEN": LIMITED_TOKEN, "STOP_S": STOP_S, **settings}
            environment = {PREFIX + key: value for key, value in told.items()}
            print(f"\n== {name}", flush=True)
            first_answer(service, settings["MODEL"])
            options = Options(host=service.host, out=out / name, environment=environment)
            reports.append(run_workload(name, load_workload(name), options))
            if reports[-1].is_interrupted:
                break
    return reports
