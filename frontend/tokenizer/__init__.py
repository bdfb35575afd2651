"""The tokenizer and chat templates that go into an artifact."""
