"""Tokenizer, chat templates and incremental text."""
