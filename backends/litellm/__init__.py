"""Other people's models through LiteLLM's SDK. `litellm` itself is imported in `sdk`, and only when a backend is made:
it takes seconds and 200 MB."""
