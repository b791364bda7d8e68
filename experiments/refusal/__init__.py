"""Refusal benchmarks (MOSSBench and its contrast twin, XSTest): who refuses what, and how sure that is."""
