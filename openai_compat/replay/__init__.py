"""`python -m openai_compat replay receipt.json --base-url URL`: the same request once more, and whether it gets the
same answer. docs/receipts.md says what it prints and why it may differ.

    saved     what a file holds: a receipt, an answer with one, or a stream that was kept as it came
    said      what an answer says, to be compared
    ask       the request that is sent, and the server's answer to it
    verdict   same or other, and why; knows no file and no network
    run       the command
"""
