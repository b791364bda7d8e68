"""The model organism: how the bundled tiny LLaVA is built and trained until it fails as the papers describe."""
