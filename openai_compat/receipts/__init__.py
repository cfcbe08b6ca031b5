"""Receipts: how an answer was made, and what it takes to make it again. docs/receipts.md has the fields.

`outputs` is what an answer said, as digests; `document` puts a receipt together; `seal` is its own digest. The service
and `openai_compat.replay` share all of it.
"""
