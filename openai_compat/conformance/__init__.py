"""The contract's behaviours against any server: `python -m openai_compat conformance --base-url URL --model ID`.

The behaviours are the tests in `tests/conformance`, which know nothing but HTTP; there is no second list of them.
Nothing of the service is imported, and no server is started: a checkout, pytest, httpx and openai
(requirements/dev.txt) suffice.
"""
