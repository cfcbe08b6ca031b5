"""Pictures of a request: taken out of data URLs or fetched, looked at, and handed on as data URLs.

Whoever serves the model gets pictures in the request and nothing to fetch. What comes from the network is asked for
here once, from hosts that the operator named, at addresses that were looked at (`fetch`).

    messages ── intake ──> data_url | fetch ──> formats ──> the same messages, with checked pictures
"""
