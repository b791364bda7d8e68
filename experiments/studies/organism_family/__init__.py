"""What each mitigation gains as verdicts depend less on the picture."""
