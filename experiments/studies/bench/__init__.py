"""What a command costs in time and memory: measured by two benches, and estimated before any weights are there."""
