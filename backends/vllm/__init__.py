"""vLLM, and any other server that speaks OpenAI's HTTP API, behind our contract.

`upstream.Upstream` is one such server. `remote.RemoteBackend` is several of them, on other machines; the local mode
supervises one on a Unix socket and talks to it through the same `Upstream`. Nothing in this package's wire half imports
vLLM.
"""
