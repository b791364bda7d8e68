"""Why the baseline fails: causal tools on its failures and matched successes."""
