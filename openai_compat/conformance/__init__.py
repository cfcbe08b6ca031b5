"""The contract's behaviours against any server: `python -m openai_compat conformance --base-url URL --model ID`.

check        what a check is, and what it may say of a server besides yes and no
cases/       the checks, a module for each group; they know nothing but HTTP
subject      the server under test; api, raw_http, event_stream: how it is asked
runner       tries checks; seen: what a failed one saw; outcome: how it is written down
run, compare the commands

Nothing of the service is imported, and no server is started. `tests/conformance` runs the same checks on servers that
it starts.
"""
