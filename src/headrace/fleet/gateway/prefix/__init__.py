"""What replicas probably have in their prefix caches: indices over hashed blocks of prompts."""
