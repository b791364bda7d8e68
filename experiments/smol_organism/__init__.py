"""The organism with a real language model: SmolLM2-135M that was given eyes."""
