"""Providers on loopback: servers that speak the wire formats which OpenAI, Anthropic and OpenRouter document, scripted
by the test, with a log of who connected, what was asked and whether the caller waited for the end."""
