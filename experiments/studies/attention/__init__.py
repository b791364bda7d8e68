"""Where the verdict's attention goes in failures and in matched successes, and what the image does to the margin."""
