"""Load and measurement against any OpenAI-compatible URL."""
