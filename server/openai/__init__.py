"""The routes of the OpenAI API and their fields."""
