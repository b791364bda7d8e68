"""What a command costs in time and memory: measured by three benches, and estimated before any weights are there."""
